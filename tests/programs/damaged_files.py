"""Read damaged files one after another, and print what happened as lines of JSON.

Usage: python damaged_files.py SECONDS FILE...
"""

from __future__ import annotations

import json
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

from tfbig import SourceError
from tfbig.cli.settings import yaml_flags
from tfbig.sources import (
    ArraySource,
    VolumeOnDisk,
    at_spacing,
    open_bag,
    open_slide,
    open_volume,
    read_coords,
    read_mpp_table,
)
from tfbig.sources.slides.opening import SourceSlide
from tfbig.tissue import read_tissue

BLANK = SourceSlide(ArraySource(np.zeros((100, 100, 3), np.uint8), "blank"), "numpy")
"""Slide of the outlines."""
VOLUMES = "volumes"
"""Name of the folder of damaged volumes."""


def read_volume(path: Path) -> str:
    """Return 'read', or 'other voxels' for a file beside which there are those that it must have."""
    header = path / "x.nhdr"
    file = header if header.exists() else path
    stored = VolumeOnDisk(file)
    assert stored.read(0, 1).shape == (1, *stored.shape[1:])
    volume = open_volume(file)
    assert volume.shape == stored.shape
    volume.values().read(volume.shape[0] - 1, volume.shape[0])
    if volume.orientation is not None:
        turned = volume.turned("RAS")
        assert sorted(turned.shape) == sorted(volume.shape)
    if volume.spacing is not None:
        at_spacing(volume, (1.0, 1.0, 1.0))
    expected = path.with_suffix(".npy")
    if expected.exists() and not np.array_equal(volume.read(0, 5)[..., 0], np.load(expected)):
        return "other voxels"
    return "read"


def read(path: Path) -> str | None:
    """Read a part of a file, as its folder or its suffix says, and return what is wrong with it.

    Raises:
        SourceError: The file is damaged.
    """
    if path.parent.name == VOLUMES:
        return read_volume(path)
    if path.suffix == ".h5":
        if "features" in path.name:
            assert open_bag(path).read(0, 1).shape[0] == 1
        coords = read_coords(path)
        assert coords.coords.shape[1] == 2 and coords.size > 0
    elif path.suffix == ".geojson":
        assert read_tissue(path, BLANK).mask.any()
    elif path.suffix == ".csv":
        assert all(mpp > 0 for mpp in read_mpp_table(path).values())
    elif path.suffix == ".yaml":
        assert isinstance(yaml_flags.read_yaml(path), dict)
    else:
        slide = open_slide(path)
        rows, columns = (min(n, 100) for n in slide.shape[:2])
        for level in range(len(slide.levels)):
            source = slide.level(level)
            part = source.read_window(
                (0, min(rows, source.shape[0])), (0, min(columns, source.shape[1]))
            )
            assert part.dtype == slide.dtype and part.shape[2] == slide.shape[2]
        if slide.dtype == np.uint8 and max(slide.shape[:2]) < 4096:
            slide.thumbnail(64)
    return None


def outcome(read_file: Callable[[Path], str | None], path: Path) -> str:
    """Return 'read', 'refused', or what went wrong with a file.

    Args:
        read_file: Function that reads a file, and may return what is wrong with the result.
        path: The file.
    """
    try:
        return read_file(path) or "read"
    except (SourceError, ValueError) as error:
        if path.name not in str(error):
            return f"an error without a name: {type(error).__name__}: {error}"
        return "refused" if str(error).isprintable() else f"more than one line: {error}"
    except BaseException as error:  # also those of Rust
        return f"{type(error).__name__}: {error}"


def run(
    read_file: Callable[[Path], str | None], seconds: int, files: list[str], memory: int = 2**31
) -> None:
    """Limit memory and the time of each file, and read the files.

    Args:
        read_file: Function that reads a file, and may return what is wrong with the result.
        seconds: Longest time of a file.
        files: The files.
        memory: Bytes that all of them may take together.
    """

    def stop(*_: object) -> None:
        raise TimeoutError(f"took longer than {seconds} s")

    signal.signal(signal.SIGALRM, stop)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + memory, used + memory))
    for file in files:
        signal.alarm(seconds)
        result = outcome(read_file, Path(file))
        signal.alarm(0)
        print(json.dumps({file: result}), flush=True)


if __name__ == "__main__":
    run(read, int(sys.argv[1]), sys.argv[2:])
