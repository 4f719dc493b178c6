"""Paths of the command line: each must exist and be of its kind before anything is read or written."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tfbig.cli.settings.flag import Flag, flags_of
from tfbig.errors import SourceError
from tfbig.system import output_folder


class FlagError(SourceError):
    """Raised if a flag or an argument is wrong, alone, with others or for the data; the command ends with exit code 2.

    An error of a file, also of one that a flag names, is a `SourceError`.
    """


def check(settings: Any) -> None:
    """Check the paths of the settings of a command.

    Raises:
        FlagError: A path does not exist, or is a file where a folder is expected or the reverse.
    """
    for name, declared in flags_of(type(settings)).items():
        value = getattr(settings, name)
        if not declared.exists or not value or value in declared.not_paths:
            continue
        for path in value if isinstance(value, tuple) else (value,):
            shown = path if declared.positional else f"--{name.replace('_', '-')} {path}"
            check_path(shown, path, _kind(name, declared, settings))


def _kind(name: str, declared: Flag, settings: Any) -> str:
    """Return what a path must be; `--data` of slides, or of their features, may also be their table."""
    values = vars(settings)
    kinds = {values.get("bags"), values.get("images")}
    slides = name == "data" and bool(kinds & {"slides", "features"})
    return "file or folder" if slides else declared.exists


def check_path(shown: str, path: str | Path, kind: str) -> None:
    """Check one path; `shown` is how an error names it, after its flag.

    `kind` is "file", "folder" or "file or folder".

    Raises:
        FlagError: As in `check`.
    """
    path = Path(path)
    if not path.exists():
        raise FlagError(
            f"{shown}: no such {kind}. Check the path (working directory: {Path.cwd()})."
        )
    actual = "folder" if path.is_dir() else "file"
    if actual not in kind:
        raise FlagError(f"{shown}: is a {actual}; expected a {kind}. Check the path.")


def inputs_of(settings: Any) -> list[str]:
    """The files and folders that a command reads."""
    found: list[str] = []
    for name, declared in flags_of(type(settings)).items():
        value = getattr(settings, name)
        if (declared.exists or declared.path) and value and value not in declared.not_paths:
            found += value if isinstance(value, tuple) else (value,)
    return found


def check_results(path: str | Path, inputs: Iterable[str | Path]) -> None:
    """Check that the folder of `--out` can hold results, without a file in it that is read or that tfbig did not write.

    `inputs` are the files and folders that the command reads.

    Raises:
        FlagError: It holds such a file; or as of `check_out`.
    """
    check_out(path)
    try:
        output_folder.check(path, inputs)
    except SourceError as error:
        raise FlagError(f"--out {error}") from error


def check_out(path: str | Path) -> None:
    """Check that the folder of `--out` can be created, or written to if it exists; nothing stays on disk.

    Raises:
        FlagError: It cannot, or it is a file.
    """
    path = Path(path)
    place = next(place for place in (path, *path.parents) if os.path.lexists(place))
    if place == path and path.exists():
        check_path(f"--out {path}", path, "folder")
    try:
        os.rmdir(tempfile.mkdtemp(prefix=".part-", dir=place))
    except OSError as error:
        raise FlagError(
            f"--out {path}: the folder cannot be {'written to' if place == path else 'created'}: no folder can be made "
            f"in {place} ({error.strerror}). Use another --out."
        ) from error
