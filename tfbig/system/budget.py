"""Memory budgets: limits in bytes for device, host and disk."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from dataclasses import asdict, dataclass
from typing import Any

from tfbig.errors import Advice, BudgetError
from tfbig.system import cgroups

DEFAULT_STRIPS = 256 * 2**20
"""Bytes for strips where device and host share one memory: large enough for long loops over rows, small enough
that a strip is still in the cache when its backward pass reads it. ResNet-50 at 2048 x 2048 takes 10.6 s per step with
it, 11.7 s with twice as much, 11.1 s with 96 MB; ResNet-18, VGG16 and MobileNetV2 take as long with twice as much."""

HOST_SHARE = 8
"""By default 1 / `HOST_SHARE` of the host budget is for strips. ResNet-18 at 2048 x 2048 within 1.16 GB takes 3.5 s
per step with it (one process), 3.5 to 3.7 s with 1/16 (three processes): storing more images does not make up for
lower strips."""

MOST_OF_HOST = 0.9
"""Part of the available memory that stored images may have by default; the rest is for reading images and writing
results, and for what other processes need later."""

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_BINARY = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def parse_bytes(size: int | float | str) -> int:
    """Convert a size such as `8000000000`, `"8GB"`, `"512 MiB"` or `"1.5G"` to bytes.

    Args:
        size: A number of bytes, or text with a decimal (`GB`, `G`: 10**9) or binary (`GiB`: 2**30) unit.

    Returns:
        The size in whole bytes, rounded down.

    Raises:
        ValueError: `size` is not a positive size.
    """
    match = re.fullmatch(r"\s*([0-9.]+)\s*([KMGT]?)(i?)B?\s*", str(size), re.IGNORECASE)
    try:
        number = float(match[1]) if match else float("nan")
    except ValueError:
        number = float("nan")
    if not match or not number > 0:
        raise ValueError(
            f"expected a size such as '8GB', '512MiB' or a number of bytes, received {size!r}."
        )
    unit = match[2].upper()
    return int(number * (_BINARY[unit] if match[3] and unit else _UNITS[unit]))


@dataclass(frozen=True)
class Budget:
    """Memory limits of a streamed model.

    Sizes are a number of bytes or text such as `"8GB"` (8 * 10**9) or `"8GiB"` (8 * 2**30).

    Args:
        device: Limit for the strips of a sweep, on each accelerator or, without one, in host memory. Default: 80 % of
            the free memory of the accelerator; without one 256 MiB, or an eighth of `host` if that is less, or more
            if a single row needs more.
        host: Limit for stored images and their gradients in host memory. Default: 90 % of the available memory of the
            machine.
        disk: Limit for what is spilled from host memory to a file, which is deleted when the process ends; `0` uses no
            file. Default: 90 % of the free space in `scratch`, or 0 if that directory is in memory.
        scratch: Directory of the spill file. Default: the directory for temporary files.

    Raises:
        ValueError: A size cannot be parsed.

    Example:
        >>> budget = tfbig.Budget(device="2GB", host="3GiB", disk=0)
        >>> budget.device_bytes, budget.host_bytes, budget.disk_bytes
        (2000000000, 3221225472, 0)
        >>> image = keras.Input((None, None, 3))
        >>> model = keras.Model(image, keras.layers.Conv2D(8, 3)(image))
        >>> tfbig.stream(model, budget)(np.zeros((1, 64, 48, 3), "float32")).shape
        TensorShape([1, 62, 46, 8])
    """

    device: int | str | None = None
    host: int | str | None = None
    disk: int | str | None = None
    scratch: str | None = None

    def __post_init__(self) -> None:
        """Check the sizes."""
        for name in ("device", "host", "disk"):
            size = getattr(self, name)
            if size is None or (name == "disk" and _is_zero(size)):
                continue
            try:
                parse_bytes(size)
            except ValueError as error:
                raise ValueError(f"Budget({name}={size!r}): {error}") from None

    @property
    def device_bytes(self) -> int | None:
        """Limit for strips in bytes; None if it depends on the accelerator."""
        return None if self.device is None else parse_bytes(self.device)

    @property
    def host_bytes(self) -> int:
        """Limit for stored images in bytes."""
        return (
            int(MOST_OF_HOST * available_bytes()) if self.host is None else parse_bytes(self.host)
        )

    @property
    def disk_bytes(self) -> int:
        """Limit for the spill file in bytes; 0 if nothing is spilled.

        Raises:
            BudgetError: `scratch` is no directory.
        """
        if self.disk is not None and _is_zero(self.disk):
            return 0
        if self.scratch is not None:
            check_scratch(self.scratch)
        if self.disk is not None:
            return parse_bytes(self.disk)
        if not os.path.isdir(self.folder) or in_memory(self.folder):
            return 0
        return int(0.9 * shutil.disk_usage(self.folder).free)

    @property
    def folder(self) -> str:
        """Directory of the spill file."""
        return self.scratch or tempfile.gettempdir()

    def get_config(self) -> dict[str, Any]:
        """Return the arguments of this budget."""
        return asdict(self)


def check_scratch(folder: str) -> None:
    """Raise BudgetError if a scratch directory does not exist."""
    if not os.path.isdir(folder):
        raise BudgetError(f"scratch directory '{folder}' does not exist;", Advice.CREATE_SCRATCH)


def _is_zero(size: int | str) -> bool:
    return str(size).strip() == "0"


def in_memory(folder: str) -> bool:
    """Return whether a directory is in memory (tmpfs, ramfs); False if the system does not report it."""
    path = os.path.realpath(folder)
    try:
        with open("/proc/self/mounts") as file:
            mounts = [line.split()[1:3] for line in file]
    except OSError:
        return False
    parents = [(m, kind) for m, kind in mounts if os.path.commonpath([m, path]) == m]
    return max(parents, key=lambda mount: len(mount[0]), default=("", ""))[1] in ("tmpfs", "ramfs")


def available_bytes() -> int:
    """Return the available host memory in bytes, limited by the control group of this process."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        with open("/proc/meminfo") as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    machine = int(line.split()[1]) * 1024
    except OSError:
        pass  # not Linux
    group = cgroups.available_bytes()
    return machine if group is None else min(machine, group)
