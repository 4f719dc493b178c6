"""Volumes in folders: files by case, and DICOM series."""

from __future__ import annotations

from pathlib import Path

from tfbig.sources.names import title_of
from tfbig.sources.volumes.dicom import is_series
from tfbig.sources.volumes.opening import is_volume, suffix_of


def volumes_in(folder: Path) -> list[Path]:
    """List the volumes in a folder, by name: the folder itself if it is a DICOM series, else its files and series.

    Of cases with a file for each channel, `CASE_0000.nii.gz`, `CASE_0001.nii.gz`, ..., the first is returned.
    """
    if is_series(folder):
        return [folder]
    found = []
    for path in sorted(folder.iterdir()):
        if path.is_dir():
            found += [path] if is_series(path) else []
        elif (suffix_of(path) or is_volume(path)) and path.name[0] != ".":
            number = _channel(path)
            if not number or not _sibling(path, 0).exists():
                found.append(path)
    return found


def channels_of(path: Path, count: int) -> list[Path]:
    """The files of the channels of a case, given the first; one file if it is not named so.

    `count` channels are looked for.
    """
    if _channel(path) != 0 or count == 1:
        return [path]
    files = [_sibling(path, number) for number in range(count)]
    return files if all(file.exists() for file in files) else [path]


def case_of(path: Path) -> str:
    """The name of the case of a volume, without the number of its channel, after which results are named.

    `path` is the file of the first channel, or of all; or the folder of a series.
    """
    title = title_of(path)
    return title if _channel(path) is None else title[:-5]


def _channel(path: Path) -> int | None:
    """The number of the channel in `CASE_0000.nii.gz`, or None."""
    head, _, number = title_of(path).rpartition("_")
    is_number = bool(head) and len(number) == 4 and number.isdecimal() and suffix_of(path)
    return int(number) if is_number else None


def _sibling(path: Path, number: int) -> Path:
    """The file of another channel of a case."""
    suffix = path.name[len(title_of(path)) :]
    return path.with_name(f"{case_of(path)}_{number:04}{suffix}")
