"""Checkpoint files: written atomically, verified on reading, the last two retained."""

from __future__ import annotations

import json
import os
import re
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
from tfbig.sources.writing import atomic_write

FORMAT = "tfbig checkpoint 1"
RETAINED = 2
SUFFIX = ".safetensors"

Arrays = Mapping[str, np.ndarray]


class Refused(Exception):
    """Raised with the reason why a checkpoint is not used."""


@dataclass(frozen=True)
class Checkpoint:
    """Contents of a checkpoint file.

    Args:
        path: Path of the file.
        arrays: Arrays by name.
        values: Other values, as JSON represents them.
    """

    path: Path
    arrays: Arrays
    values: dict[str, Any]


class Checkpoints:
    """Checkpoints of a run: files `step-<number>.safetensors` in a separate folder.

    A file contains arrays and, in its metadata, other values, the identifier of the run, and a CRC-32 of each array
    and of the metadata. It is written under a temporary name, flushed to disk, and renamed; only then is the oldest
    of three removed.

    Args:
        folder: Folder of the checkpoints, created with the first one.
        run: Identifier of the run; checkpoints of other runs are refused.
        told: Function that receives a line for each refused checkpoint; by default it prints to standard error.

    Raises:
        SourceError: On `write`, the file cannot be written; on `newest`, there are files but none can be used.

    Example:
        >>> from tfbig.training import Checkpoints
        >>> checkpoints = Checkpoints("checkpoints", run="my run")
        >>> for step in (10, 20, 30):
        ...     _ = checkpoints.write(step, {"weight": np.full((2, 2), step)}, {"epoch": step // 10})
        >>> [path.name for path in checkpoints.paths()]
        ['step-000000030.safetensors', 'step-000000020.safetensors']
        >>> newest = checkpoints.newest()
        >>> newest.values, newest.arrays["weight"].tolist()
        ({'epoch': 3}, [[30, 30], [30, 30]])
    """

    def __init__(
        self, folder: str | Path, run: str, told: Callable[[str], object] | None = None
    ) -> None:
        self.folder = Path(folder)
        self.run = run
        self.told = told or _to_stderr
        # Refused files stay on disk and do not count among the two retained.
        self._refused: set[Path] = set()

    def write(self, number: int, arrays: Arrays, values: Mapping[str, Any]) -> Path:
        """Write a checkpoint and remove old ones.

        Args:
            number: Number of steps so far; it orders the checkpoints.
            arrays: Arrays by name.
            values: Other values, as JSON can represent them.

        Returns:
            Path of the file.

        Raises:
            SourceError: The file cannot be written; earlier checkpoints remain.
        """
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
            with atomic_write(path) as part:
                save_file({n: np.asarray(a, order="C") for n, a in arrays.items()}, part, metadata)
                _flush_to_disk(part)
            _flush_to_disk(self.folder)
            self._refused.discard(path)
            for old in [p for p in self.paths() if p not in self._refused][RETAINED:]:
                old.unlink()
        except (OSError, SafetensorError) as error:
            raise SourceError(
                f"{path}: the checkpoint cannot be written: {error.__cause__ or error}. Earlier "
                "checkpoints are intact: free space or make the folder writable, and continue with --resume."
            ) from error
        return path

    def paths(self) -> list[Path]:
        """Return the paths of all checkpoints, the newest first."""
        names = re.compile(rf"step-\d+{re.escape(SUFFIX)}")
        found = self.folder.glob(f"step-*{SUFFIX}")
        return sorted((path for path in found if names.fullmatch(path.name)), reverse=True)

    def newest(self, fits: Callable[[Checkpoint], None] = lambda _: None) -> Checkpoint | None:
        """Return the newest checkpoint that can be used.

        Args:
            fits: Function that raises `Refused` for a valid checkpoint that does not fit the model.

        Returns:
            The checkpoint, or None if none was written.

        Raises:
            SourceError: There are checkpoints but none can be used.
        """
        reasons = []
        for path in self.paths():
            try:
                checkpoint = _read(path, self.run)
                fits(checkpoint)
            except Refused as reason:
                self._refused.add(path)
                reasons.append(f"{path}: {reason}")
                self.told(f"{path} is not used: {reason}; trying the previous one")
                continue
            return checkpoint
        if reasons:
            raise SourceError(
                f"{self.folder}: none of {len(reasons)} checkpoints can be used. {'; '.join(reasons)}. Start a new "
                "run without --resume, in another --out."
            )
        return None


def _read(path: Path, run: str) -> Checkpoint:
    try:
        return _verified(path, run)
    except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
        reason = (
            f"damaged or not a checkpoint ({type(error).__name__}: {' '.join(str(error).split())})"
        )
        raise Refused(reason) from error


def _verified(path: Path, run: str) -> Checkpoint:
    # Not memory-mapped: a disk error would end the process instead of raising.
    with safe_open(path, framework="np", backend="pread") as file:
        metadata = file.metadata() or {}
        if metadata.get("format") != FORMAT:
            raise Refused(f"format is {metadata.get('format')!r}; expected '{FORMAT}'")
        if zlib.crc32(metadata["about"].encode()) != int(metadata["checksum"]):
            raise Refused("metadata is damaged")
        about = json.loads(metadata["about"])
        if about["run"] != run:
            raise Refused(f"belongs to another run ({about['run']}; this is {run})")
        arrays = dict(_verified_arrays(file, about["checksums"]))
    return Checkpoint(path, arrays, about["values"])


def _verified_arrays(file: Any, checksums: Mapping[str, int]) -> Iterator[tuple[str, np.ndarray]]:
    if set(file.keys()) != set(checksums):
        raise Refused("arrays are missing or were added")
    for name, expected in checksums.items():
        array = file.get_tensor(name)
        if _checksum(array) != expected:
            raise Refused(f"'{name}' is damaged")
        yield name, array


def _checksum(array: np.ndarray) -> int:
    return zlib.crc32(np.asarray(array, order="C").reshape(-1).view(np.uint8).data)


def _flush_to_disk(path: Path) -> None:
    """Flush a file, or the entries of a folder, so that it survives a power failure."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _to_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
