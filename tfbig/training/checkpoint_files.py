"""Files of training state: written beside and renamed, the last two kept, each verified when it is read."""

from __future__ import annotations

import json
import os
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from tfbig.errors import SourceError
from tfbig.sources.writing import beside

FORMAT = "tfbig checkpoint 1"
KEPT = 2
SUFFIX = ".safetensors"

Arrays = Mapping[str, np.ndarray]


class Refused(Exception):
    """Why a checkpoint is not used."""


@dataclass(frozen=True)
class Checkpoint:
    """What was read.

    Args:
        path: its file.
        arrays: by name.
        values: what JSON can hold.
    """

    path: Path
    arrays: Arrays
    values: dict[str, Any]


class Checkpoints:
    """The checkpoints of a run, `step-<number>.safetensors` in a folder of their own.

    A file holds arrays, and in its metadata values, which run it is of, and a CRC-32 of each array and of the metadata.
    It is written under another name, brought to the disk, and renamed; only then is the oldest but one removed.

    Args:
        folder: made when the first is written.
        run: identifies the run; those of another are refused.
        told: what is called with a line about each that is refused.

    Raises:
        SourceError: on `write`, the file cannot be written; on `newest`, there are files but none that can be used.
    """

    def __init__(
        self, folder: str | Path, run: str, told: Callable[[str], object] | None = None
    ) -> None:
        self.folder = Path(folder)
        self.run = run
        self.told = told or _to_stderr
        self._refused: set[Path] = set()  # stay where they are, and do not count

    def write(self, number: int, arrays: Arrays, values: Mapping[str, Any]) -> Path:
        """Writes the state after so many steps."""
        path = self.folder / f"step-{number:09d}{SUFFIX}"
        about = {
            "run": self.run,
            "values": values,
            "checksums": {name: _checksum(array) for name, array in arrays.items()},
        }
        text = json.dumps(about)
        metadata = {"format": FORMAT, "about": text, "checksum": str(zlib.crc32(text.encode()))}
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with beside(path) as part:
                save_file({n: np.asarray(a, order="C") for n, a in arrays.items()}, part, metadata)
                _to_disk(part)
            _to_disk(self.folder)
            self._refused.discard(path)
            for old in [p for p in self.paths() if p not in self._refused][KEPT:]:
                old.unlink()
        except (OSError, SafetensorError) as error:
            raise SourceError(
                f"{path}: the checkpoint cannot be written: {error}. Those before are whole: make room, or let it be "
                "written to, and go on with --resume."
            ) from error
        return path

    def paths(self) -> list[Path]:
        """Newest first."""
        return sorted(self.folder.glob(f"step-*{SUFFIX}"), reverse=True)

    def newest(self, fits: Callable[[Checkpoint], None] = lambda _: None) -> Checkpoint | None:
        """The newest that can be used, None if none was written.

        Args:
            fits: raises `Refused` for one that is whole but does not fit.
        """
        reasons = []
        for path in self.paths():
            try:
                found = _read(path, self.run)
                fits(found)
            except Refused as reason:
                self._refused.add(path)
                reasons.append(f"{path}: {reason}")
                self.told(f"{path} is not used: {reason}; the one before is")
                continue
            return found
        if reasons:
            raise SourceError(
                f"{self.folder}: none of {len(reasons)} checkpoints can be used. {'; '.join(reasons)}. Start the run "
                "again without --resume, in another --out."
            )
        return None


def _read(path: Path, run: str) -> Checkpoint:
    try:
        return _verified(path, run)
    except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
        reason = f"torn or no checkpoint ({type(error).__name__}: {' '.join(str(error).split())})"
        raise Refused(reason) from error


def _verified(path: Path, run: str) -> Checkpoint:
    # Not mapped: a file on a disk that fails would end the process instead of raising.
    with safe_open(path, framework="np", backend="pread") as file:
        metadata = file.metadata() or {}
        if metadata.get("format") != FORMAT:
            raise Refused(f"is no '{FORMAT}'")
        if zlib.crc32(metadata["about"].encode()) != int(metadata["checksum"]):
            raise Refused("its metadata is damaged")
        about = json.loads(metadata["about"])
        if about["run"] != run:
            raise Refused(f"is of another run ({about['run']}, this is {run})")
        arrays = dict(_checked(file, about["checksums"]))
    return Checkpoint(path, arrays, about["values"])


def _checked(file: Any, checksums: Mapping[str, int]) -> Iterator[tuple[str, np.ndarray]]:
    if set(file.keys()) != set(checksums):
        raise Refused("its arrays are not those that were written")
    for name, expected in checksums.items():
        array = file.get_tensor(name)
        if _checksum(array) != expected:
            raise Refused(f"'{name}' is damaged")
        yield name, array


def _checksum(array: np.ndarray) -> int:
    return zlib.crc32(np.asarray(array, order="C").reshape(-1).view(np.uint8).data)


def _to_disk(path: Path) -> None:
    """Returns when a file, or the names in a folder, would survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _to_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
