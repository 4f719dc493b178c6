"""How many bytes a model may take, and where."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from dataclasses import asdict, dataclass
from typing import Any

from tfbig.system import cgroups

DEFAULT_STRIPS = 256 * 2**20
"""Bytes for strips where device and host are the same memory: large enough for long loops over rows, small
enough that a strip is still warm when its backward needs it. ResNet-50 at 2048 x 2048 takes 10.6 s a step with it,
11.7 s with twice as much, 11.1 s with 96 MB; ResNet-18, VGG16 and MobileNetV2 take as long with twice as much."""

HOST_SHARE = 8
"""Of the host budget, one part in so many is for strips by default. ResNet-18 at 2048 x 2048 within 1.16 GB takes 3.5 s
a step with it (one process), 3.5 to 3.7 s with a 16th (three): what lower strips cost, more images do not save."""

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_BINARY = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def parse_bytes(size: int | float | str) -> int:
    """Bytes of `8000000000`, `"8GB"`, `"512 MiB"` or `"1.5G"`.

    Raises:
        ValueError: not a positive size.
    """
    found = re.fullmatch(r"\s*([0-9.]+)\s*([KMGT]?)(i?)B?\s*", str(size), re.IGNORECASE)
    try:
        number = float(found[1]) if found else float("nan")
    except ValueError:
        number = float("nan")
    if not found or not number > 0:
        raise ValueError(
            f"expected a size such as '8GB', '512MiB' or a number of bytes, received {size!r}."
        )
    unit = found[2].upper()
    return int(number * (_BINARY[unit] if found[3] and unit else _UNITS[unit]))


@dataclass(frozen=True)
class Budget:
    """Bytes that a streamed model may take.

    Args:
        device: for the strips of a sweep, on each accelerator or, without one, in host memory. Default: 80 % of the
            accelerator's free memory; without one 256 MiB, an eighth of `host` where that is less, more where a
            single row takes more.
        host: for stored images and their gradients. Default: what the machine has available.
        disk: for those that host memory does not hold, in a file that goes with the process. Default: 90 % of what
            is free in `scratch`, or nothing where that lies in memory.
        scratch: directory of this file. Default: the one for temporary files.
        All but the last: a number of bytes or text such as "8GB" (10**9) or "8GiB" (2**30); `disk=0` uses no file.
    """

    device: int | str | None = None
    host: int | str | None = None
    disk: int | str | None = None
    scratch: str | None = None

    @property
    def device_bytes(self) -> int | None:
        """None leaves it to the machine."""
        return None if self.device is None else parse_bytes(self.device)

    @property
    def host_bytes(self) -> int:
        return available_bytes() if self.host is None else parse_bytes(self.host)

    @property
    def disk_bytes(self) -> int:
        """0 where there is no disk."""
        if self.disk is not None:
            return 0 if str(self.disk).strip() == "0" else parse_bytes(self.disk)
        if not os.path.isdir(self.folder) or in_memory(self.folder):
            return 0
        return int(0.9 * shutil.disk_usage(self.folder).free)

    @property
    def folder(self) -> str:
        """The scratch directory."""
        return self.scratch or tempfile.gettempdir()

    def get_config(self) -> dict[str, Any]:
        return asdict(self)


def in_memory(folder: str) -> bool:
    """Whether a directory lies in memory instead of on a disk; False where the system does not say."""
    path = os.path.realpath(folder)
    try:
        with open("/proc/self/mounts") as file:
            mounts = [line.split()[1:3] for line in file]
    except OSError:
        return False
    around = [(m, kind) for m, kind in mounts if os.path.commonpath([m, path]) == m]
    return max(around, key=lambda found: len(found[0]), default=("", ""))[1] in ("tmpfs", "ramfs")


def available_bytes() -> int:
    """Host memory that can still be had, in bytes: of the machine, or of the control group that this process is in."""
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
