"""The folder of a training run: settings, plan, history, checkpoint, results.

Every file is written beside its place and renamed when it is complete, so a file that is there is
whole, whenever a run was stopped. `metrics.json` comes last: a run that has it has ended.
"""

from __future__ import annotations

import csv
import fcntl
import io
import json
import platform
import resource
import statistics
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import keras
import yaml

from tfbig.errors import SourceError
from tfbig.sources.writing import beside

CHECKPOINTS = "checkpoints"
CONFIG = "config.yaml"
HISTORY = "history.csv"
METRICS = "metrics.json"
PREDICTIONS = "predictions.csv"
FAILED = "failed.csv"
VERSIONS = "versions.json"


def write_text(path: str | Path, text: str) -> None:
    """Writes a text file, all of it or nothing."""
    with beside(path) as part:
        part.write_text(
            text, encoding="utf-8", errors="backslashreplace"
        )  # names of files may be bytes


def write_yaml(path: str | Path, values: Mapping[str, Any]) -> None:
    """Writes `values` as YAML, in their order."""
    write_text(path, yaml.safe_dump(dict(values), sort_keys=False))


def write_json(path: str | Path, values: Mapping[str, Any]) -> None:
    """Writes `values` as JSON, in their order."""
    write_text(path, json.dumps(values, indent=2) + "\n")


def read_json(path: str | Path) -> dict[str, Any]:
    """What `write_json` wrote; nothing if there is no such file.

    Raises:
        SourceError: it holds something else.
    """
    path = Path(path)
    if not path.exists():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise SourceError(f"{path}: is damaged ({error}). Put it back, or remove it.") from error
    if not isinstance(found, dict):
        raise SourceError(
            f"{path}: is damaged; expected names and values. Put it back, or remove it."
        )
    return found


def write_versions(folder: str | Path) -> None:
    """Writes what the run was made with, when it began, and by which its files know it."""
    found = {name: version(name) for name in ("tfbig", "tensorflow", "keras", "numpy")}
    time_of = time.strftime("%Y-%m-%d %H:%M:%S")
    python = {"python": platform.python_version(), "system": platform.platform()}
    run = read_json(Path(folder) / VERSIONS).get("run") or uuid.uuid4().hex
    write_json(Path(folder) / VERSIONS, {"run": run, "time": time_of, **found, **python})


def identity(folder: str | Path) -> str:
    """By which the checkpoints of a run know that they are of this one."""
    return str(read_json(Path(folder) / VERSIONS)["run"])


def write_csv(path: str | Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Writes `rows` with one header line; all have the keys of the first."""
    text = io.StringIO()
    writer = csv.DictWriter(text, rows[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_text(path, text.getvalue())


def read_rows(path: str | Path) -> list[dict[str, str]]:
    """Rows of a CSV file; none if there is no such file."""
    if not Path(path).exists():
        return []
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def read_csv(path: str | Path) -> list[dict[str, float]]:
    """Rows of a CSV file of numbers; none if there is no such file."""
    return [{key: float(value) for key, value in row.items()} for row in read_rows(path)]


@contextmanager
def alone_in(folder: str | Path) -> Iterator[None]:
    """Within it, no other process is in `alone_in` of the same folder; on network file systems too."""
    with open(Path(folder) / ".lock", "w") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)  # goes with the process, however that ends
        yield


def replace_row(path: str | Path, key: str, value: str, row: Mapping[str, Any] | None) -> None:
    """Replaces the row of a table whose `key` is `value`, while other processes do so with theirs.

    Args:
        path: The CSV file; one without rows is removed.
        key: A column.
        value: Of the row that is replaced, or added where there is none.
        row: The new one; None only removes.
    """
    if row is None and not Path(path).exists():
        return
    with alone_in(Path(path).parent):
        kept: list[Mapping[str, Any]] = [r for r in read_rows(path) if r[key] != value]
        rows = kept if row is None else [*kept, row]
        if rows:
            write_csv(path, rows)
        else:
            Path(path).unlink(missing_ok=True)


def save_model(path: str | Path, model: keras.Model) -> None:
    """Saves a Keras model as a `.keras` file, all of it or nothing."""
    with beside(path) as part:
        model.save(part)


def create(path: str | Path) -> Path:
    """Makes the folder of a new run.

    Raises:
        FileExistsError: It holds a run already.
    """
    folder = Path(path)
    if (folder / CONFIG).exists():
        raise FileExistsError(
            f"{folder}: holds a run already. Continue it with --resume, or give another --out."
        )
    if folder.exists() and not folder.is_dir():
        raise FileExistsError(f"{folder}: is a file; expected the folder of a run. Check --out.")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def memory_bytes() -> tuple[int, int]:
    """Resident memory of this process: `(now, peak so far)` in bytes."""
    status = Path("/proc/self/status")
    if status.exists():
        lines = dict(line.split(":", 1) for line in status.read_text().splitlines())
        now, top = (int(lines[key].split()[0]) * 1024 for key in ("VmRSS", "VmHWM"))
        return now, top
    unit = 1 if sys.platform == "darwin" else 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    return peak, peak


class Recorder(keras.callbacks.Callback):
    """Writes the history after each epoch, and times the steps.

    Args:
        folder: The run folder.
        clock: Seconds.

    Attributes:
        history: A row `{epoch, loss, ..., val_loss, ..., seconds_per_step}` for each epoch.
        new: How many of them this process has added.
    """

    def __init__(self, folder: str | Path, clock: Callable[[], float] = time.perf_counter) -> None:
        super().__init__()
        self.folder = Path(folder)
        self.history: list[Mapping[str, Any]] = []
        self.new = 0
        self._clock = clock
        self._began = 0.0
        self._seconds: list[float] = []

    def remembered(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {"history": self.history, "seconds": self._seconds}

    def remember(self, found: Mapping[str, Any]) -> None:
        """Goes on from there."""
        self.history, self._seconds = list(found["history"]), list(found["seconds"])

    def written(self) -> None:
        """Nothing is left to do."""

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._began = self._clock()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._seconds.append(self._clock() - self._began)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        numbers = {key: float(value) for key, value in logs.items()}
        seconds = statistics.median(self._seconds)
        self.history.append({"epoch": epoch + 1, **numbers, "seconds_per_step": seconds})
        self._seconds = []
        self.new += 1
        write_csv(self.folder / HISTORY, self.history)
