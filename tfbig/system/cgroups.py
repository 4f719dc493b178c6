"""Memory that a control group of Linux leaves: a container or a job has less than its machine, and is killed beyond it.

Documentation of the kernel: `admin-guide/cgroup-v2` (`memory.max`, `memory.current`, `memory.stat`), and version 1,
`admin-guide/cgroup-v1/memory` (`memory.limit_in_bytes`, `memory.usage_in_bytes`).
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath

UNLIMITED = 2**60
"""Limits from here on are none: version 1 says 2**63 less a page."""

ROOT = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")


def available_bytes(root: Path = ROOT, own: Path = OWN) -> int | None:
    """Bytes that this process may still take by the limits of its group and of those around it.

    What the system keeps of files without need counts as available, as in `MemAvailable`.

    Args:
        root: where groups are mounted.
        own: names those of this process.

    Returns:
        None where nothing limits it, or the system does not say.
    """
    left = [_left(folder) for folder in _folders(root, own)]
    known = [number for number in left if number is not None]
    return max(min(known), 0) if known else None


def _folders(root: Path, own: Path) -> list[Path]:
    """Of the groups of this process; in a container its own group is at the root, whatever it is called."""
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, name = rest.partition(":")
        if controllers and "memory" not in controllers.split(","):
            continue
        top = root / "memory" if controllers else root
        path = PurePosixPath(name)
        found += [top / str(each).lstrip("/") for each in (path, *path.parents)]
    return found


def _left(folder: Path) -> int | None:
    names = ("memory.max", "memory.current", "inactive_file")
    if not (folder / names[0]).exists():
        names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
    try:
        limit, used = ((folder / name).read_text().strip() for name in names[:2])
        stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        if limit == "max" or int(limit) >= UNLIMITED:
            return None
        return int(limit) - int(used) + int(stat.get(names[2], 0))
    except (OSError, ValueError):
        return None
