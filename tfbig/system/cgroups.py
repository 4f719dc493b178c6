"""Available memory of a Linux control group.

A container or a job has less memory than its machine, and is killed when it uses more.

Documentation of the kernel: `admin-guide/cgroup-v2` (`memory.max`, `memory.current`, `memory.stat`), and version 1,
`admin-guide/cgroup-v1/memory` (`memory.limit_in_bytes`, `memory.usage_in_bytes`).
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath

UNLIMITED = 2**60
"""Limits from this value on mean unlimited: version 1 reports 2**63 minus one page."""

ROOT = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")


def available_bytes(root: Path = ROOT, membership: Path = MEMBERSHIP) -> int | None:
    """Return the bytes that this process may still allocate in its control group and its parents.

    File cache that the kernel can drop counts as available, as in `MemAvailable`.

    Args:
        root: Mount point of the control groups.
        membership: File that lists the groups of this process.

    Returns:
        Bytes, or None if there is no limit or the system does not report it.
    """
    available = [_group_available(folder) for folder in _group_folders(root, membership)]
    limited = [number for number in available if number is not None]
    return max(min(limited), 0) if limited else None


def _group_folders(root: Path, membership: Path) -> list[Path]:
    """Return the folders of the groups of this process and of their parents.

    In a container its group is mounted at the root, whatever its name is.
    """
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return []
    folders = []
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, name = rest.partition(":")
        if controllers and "memory" not in controllers.split(","):
            continue
        top = root / "memory" if controllers else root
        path = PurePosixPath(name)
        folders += [top / str(each).lstrip("/") for each in (path, *path.parents)]
    return folders


def _group_available(folder: Path) -> int | None:
    """Return limit - use + inactive file cache of one group, or None without a limit."""
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
