"""How many bytes a model may take, and where."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Any

DEFAULT_STRIPS = 512 * 2**20
"""Bytes for strips where device and host are the same memory: large enough for long loops over rows, small
enough that a strip is still warm when its backward needs it."""

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
        device: for the strips of a sweep, on the accelerator or, without one, in host memory. Default:
            80 % of the accelerator's free memory, or 512 MiB.
        host: for stored images and their gradients. Default: what the machine has available.
        Both: a number of bytes or text such as "8GB" (10**9) or "8GiB" (2**30).
    """

    device: int | str | None = None
    host: int | str | None = None

    @property
    def device_bytes(self) -> int | None:
        """None leaves it to the machine."""
        return None if self.device is None else parse_bytes(self.device)

    @property
    def host_bytes(self) -> int:
        return available_bytes() if self.host is None else parse_bytes(self.host)

    def get_config(self) -> dict[str, Any]:
        return {"device": self.device, "host": self.host}


def available_bytes() -> int:
    """Host memory that can still be had, in bytes."""
    try:
        with open("/proc/meminfo") as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass  # not Linux
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
