"""Folders of results: a record in each lists what tfbig wrote there, and nothing else in it is replaced."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import socket
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path, PurePosixPath

from tfbig.errors import SourceError

PathLike = str | os.PathLike[str]

RECORD = ".tfbig-files"
"""Name of the record: a line of JSON for each file, a path relative to the folder; that of a folder ends in a slash."""

LONGEST_NAME = 255
"""Bytes of the longest name of a file."""

_OF_THE_SYSTEM = (".DS_Store", "Thumbs.db", "desktop.ini", ".lock")
"""Files that programs write into folders without being asked."""

_PART = ".part-"
_numbers = count()


def check(folder: PathLike, inputs: Iterable[PathLike] = ()) -> None:
    """Check that results can be written to a folder without touching anything that tfbig did not write.

    Args:
        folder: The folder; it may not exist yet.
        inputs: Files and folders that a command reads.

    Raises:
        SourceError: An input is the folder or lies in it, or the folder holds a file that no record lists.
    """
    place = os.path.realpath(folder)
    for path in inputs:
        real = os.path.realpath(path)
        if real == place or real.startswith(place + os.sep):
            what = "is" if real == place else f"holds {path}, which is"
            raise SourceError(
                f"{folder}: {what} read by this command; results would be written between the inputs. Use a new folder."
            )
    if (foreign := next(_foreign(Path(folder)), None)) is not None:
        raise SourceError(
            f"{folder}: holds {foreign}, which tfbig did not write. Use a new folder, or move that file elsewhere."
        )


def claim(folder: PathLike, inputs: Iterable[PathLike] = ()) -> Path:
    """Create a folder for results, or go on with one that holds nothing else; start its record.

    What killed processes left unfinished in it is removed.

    Args:
        folder: The folder.
        inputs: Files and folders that a command reads.

    Returns:
        The folder.

    Raises:
        SourceError: As of `check`, or it cannot be created or written to.
    """
    folder = Path(folder)
    check(folder, inputs)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with open(folder / RECORD, "a", encoding="utf-8"):
            pass
        for place, folders, names in os.walk(folder):
            remove_leftovers(Path(place), [*folders, *names])
    except OSError as error:
        raise SourceError(f"{folder}: cannot be written to: {error.strerror}.") from error
    return folder


def is_claimed(folder: PathLike) -> bool:
    """Return whether a folder has a record.

    Args:
        folder: The folder.
    """
    return (Path(folder) / RECORD).is_file()


def check_file(path: PathLike) -> None:
    """Check that a file in a folder of results is new, or was written by tfbig; elsewhere any file may be replaced.

    Args:
        path: The file, or a folder of which all is replaced.

    Raises:
        SourceError: There is such a file, and the record does not list it.
    """
    path = Path(path)
    owner = _owner(path)
    if owner is None or not os.path.lexists(path):
        return
    if not _lists(_entries(owner), _relative(owner, path)):
        raise SourceError(
            f"{path}: was not written by tfbig, and is not replaced. Move it elsewhere, or write to a new folder."
        )


def record(path: PathLike, is_folder: bool = False) -> None:
    """Add a file to the record of its folder of results, if it is in one.

    Args:
        path: The file, which may be written from now on.
        is_folder: Whether it is a folder, whose files are then not listed one by one.

    Raises:
        SourceError: As of `check_file`.
    """
    path = Path(path)
    owner = _owner(path)
    if owner is None:
        return
    if os.path.lexists(path):
        check_file(path)  # so it is listed
        return
    name = _relative(owner, path) + ("/" if is_folder else "")
    with open(owner / RECORD, "a", encoding="utf-8") as file:
        file.write(json.dumps(name) + "\n")


def file_in(folder: PathLike, name: str) -> Path:
    """Return the path of a file of results, whose name may come from a table: it must not lead out of the folder.

    Args:
        folder: Folder of results.
        name: Name of the file, with its suffix.

    Raises:
        SourceError: As of `check_name`.
    """
    check_name(name)
    return Path(folder) / name


def check_name(name: str, place: str = "") -> None:
    """Check that a text can be the name of a file.

    Args:
        name: The text.
        place: Where it is written, for the error.

    Raises:
        SourceError: It is empty, has a separator or a control character, or is too long.
    """
    wrong = not name.strip(". ") or any(c in "/\\\x7f" or ord(c) < 32 for c in name)
    if wrong or len(os.fsencode(name)) > LONGEST_NAME:
        shown = "".join(c if c.isprintable() else "?" for c in name[:80])
        raise SourceError(
            f"{place}{': ' if place else ''}'{shown}' cannot be the name of a file; expected a name without / and \\, "
            f"of at most {LONGEST_NAME} bytes. Change it."
        )


def part_prefix() -> str:
    """Return the beginning of temporary names of this process, also those of folders."""
    return f"{_PART}{_machine()}-{os.getpid()}-"


def part_of(path: PathLike) -> Path:
    """Return a temporary name beside a file, of this process and this call alone, with the suffix of the file.

    Args:
        path: The file, or a folder, that will be written or replaced.

    Raises:
        SourceError: As of `check_file`.
    """
    path = Path(path)
    check_file(path)
    if _owner(path) is None:  # else `claim` has removed them
        remove_leftovers(path.parent)
    name = f"{part_prefix()}{next(_numbers)}-{path.name}"
    is_short = len(os.fsencode(name)) <= LONGEST_NAME
    return path.with_name(name if is_short else name[:60] + path.suffix)


def remove_leftovers(folder: Path, names: Iterable[str] | None = None) -> None:
    """Remove temporary files of processes of this machine that no longer run.

    Args:
        folder: The folder.
        names: Names of its files; by default they are listed.
    """
    ours = f"{_PART}{_machine()}-"
    with suppress(OSError):  # no such folder, or none that may be read: writing to it says so
        names = os.listdir(folder) if names is None else names
    for name in names or ():
        process = name.removeprefix(ours).partition("-")[0]
        if name.startswith(ours) and process.isdecimal() and not _runs(int(process)):
            part = folder / name
            with suppress(OSError):
                shutil.rmtree(part) if part.is_dir() and not part.is_symlink() else part.unlink()


def _foreign(folder: Path) -> Iterator[Path]:
    """Yield the paths in a folder that no record lists, relative to it."""
    found: list[tuple[Path, str]] = []
    for current, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not _is_ignored(name)]
        links = [name for name in folders if os.path.islink(os.path.join(current, name))]
        found += [(Path(current), name) for name in (*links, *files) if not _is_ignored(name)]
    known: dict[Path, tuple[Path, set[str]] | None] = {}
    for place, name in found:  # after they are listed: another process records what it writes first
        if place not in known:
            owner = _owner(place / name)
            inside = owner is not None and owner.is_relative_to(_absolute(folder))
            known[place] = (owner, _entries(owner)) if owner is not None and inside else None
        entry = known[place]
        if entry is None or not _lists(entry[1], _relative(entry[0], place / name)):
            yield (place / name).relative_to(folder)


def _is_ignored(name: str) -> bool:
    return name == RECORD or name in _OF_THE_SYSTEM or name.startswith((_PART, ".nfs", "._"))


def _owner(path: Path) -> Path | None:
    """Return the innermost folder around a path that has a record."""
    return next((folder for folder in _absolute(path).parents if is_claimed(folder)), None)


def _relative(owner: Path, path: Path) -> str:
    return _absolute(path).relative_to(owner).as_posix()


def _absolute(path: PathLike) -> Path:
    return Path(os.path.abspath(path))


def _entries(owner: Path) -> set[str]:
    """Return what the record of a folder lists."""
    entries = set()
    for line in (owner / RECORD).read_text(encoding="utf-8", errors="replace").splitlines():
        with suppress(ValueError):  # a line that a killed process did not end
            entries.add(json.loads(line))
    return {entry for entry in entries if isinstance(entry, str)}


def _lists(entries: set[str], name: str) -> bool:
    """Return whether a record lists a file, or a folder around it."""
    path = PurePosixPath(name)
    return name in entries or any(f"{each}/" in entries for each in (path, *path.parents))


def _machine() -> str:
    """Return a short name of this machine: process numbers are those of one machine."""
    return hashlib.sha256(socket.gethostname().encode()).hexdigest()[:8]


def _runs(process: int) -> bool:
    """Return whether there is a process of this number."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (OverflowError, PermissionError):
        return True
    return True
