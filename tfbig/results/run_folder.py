"""Run folder of a training run: settings, plan, history, checkpoints, results.

Every file is written under a temporary name and renamed when it is complete, so a file that exists is complete
whenever the run was stopped. `metrics.json` is written last: it marks a finished run.
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

from tfbig.choices import CONFIG
from tfbig.errors import SourceError, reason_of
from tfbig.sources import csv_table
from tfbig.sources.writing import atomic_write
from tfbig.system import output_folder, yaml_files
from tfbig.units import counted

CHECKPOINTS = "checkpoints"
HISTORY = "history.csv"
MODEL = "model.keras"
METRICS = "metrics.json"
PREDICTIONS = "predictions.csv"
FAILED = "failed.csv"
SLIDES = "slides.csv"
"""Slides of the table, with the split of each."""
TESTED_ON = "tested_on"
"""Key of `metrics.json`: the split on which the metrics `test_` were computed; "val" if no item is for testing."""
RUNS = "runs.csv"
COMPARISON = "comparison.csv"
VERSIONS = "versions.json"


def write_text(path: str | Path, text: str) -> None:
    """Write a text file atomically."""
    with atomic_write(path) as part:
        # File names may be bytes that are not UTF-8.
        part.write_text(text, encoding="utf-8", errors="backslashreplace")


def write_yaml(path: str | Path, values: Mapping[str, Any]) -> None:
    """Write `values` as YAML, in their order."""
    write_text(path, yaml.safe_dump(dict(values), sort_keys=False))


def write_json(path: str | Path, values: Mapping[str, Any]) -> None:
    """Write `values` as JSON, in their order."""
    write_text(path, json.dumps(values, indent=2) + "\n")


def read_json(path: str | Path) -> dict[str, Any]:
    """Read a JSON object from a file; empty if there is no such file.

    Raises:
        SourceError: The file does not contain a JSON object.
    """
    path = Path(path)
    if not path.exists():
        return {}
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise SourceError(
            f"{path}: is damaged ({reason_of(error)}). Restore or remove it."
        ) from error
    if not isinstance(values, dict):
        raise SourceError(f"{path}: is damaged; expected names and values. Restore or remove it.")
    return values


def read_yaml(path: str | Path) -> dict[str, Any]:
    """Read a YAML file of names and values.

    Raises:
        SourceError: There is no such file, or it does not contain names and values, or has aliases.
    """
    values = yaml_files.read_yaml(path)
    if not isinstance(values, dict):
        raise SourceError(f"{path}: is damaged; expected names and values. Restore or remove it.")
    return values


def write_versions(folder: str | Path) -> None:
    """Write the versions of the packages, the start time, and the identifier of a run."""
    versions = {name: version(name) for name in ("tfbig", "tensorflow", "keras", "numpy")}
    time_of = time.strftime("%Y-%m-%d %H:%M:%S")
    python = {"python": platform.python_version(), "system": platform.platform()}
    run = read_json(Path(folder) / VERSIONS).get("run") or uuid.uuid4().hex
    write_json(Path(folder) / VERSIONS, {"run": run, "time": time_of, **versions, **python})


def identity(folder: str | Path) -> str:
    """The identifier of a run, which its checkpoints contain."""
    path = Path(folder) / VERSIONS
    values = read_json(path)
    if "run" not in values:
        raise SourceError(f"{path}: is missing, or does not name the run. Restore it.")
    return str(values["run"])


def write_csv(path: str | Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write `rows` with one header line; all rows have the keys of the first."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(map(_escaped, rows[0]))
    writer.writerows([_escaped(row[key]) for key in rows[0]] for row in rows)
    write_text(path, text.getvalue())


def save_failure(folder: str | Path, item: str, reason: str | None) -> None:
    """Write why an item could not be used to `failed.csv`, in place of an older reason.

    Other processes may write to the folder. The item is a slide, image, bag, scene or volume; without a reason, it
    can be used now.
    """
    row = None if reason is None else {"item": item, "reason": reason}
    replace_row(Path(folder) / FAILED, "item", item, row)


def failures(folder: str | Path) -> set[str]:
    """The items that `failed.csv` lists.

    Raises:
        SourceError: `failed.csv` is damaged.
    """
    file = Path(folder) / FAILED
    return {column(file, row, "item") for row in read_rows(file)}


def left_out(folder: str | Path, metrics: Mapping[str, Any]) -> list[dict[str, str]]:
    """Rows, `item` and `reason`, of the items that a run could not read.

    `failed.csv` lists them. Without it, they are those of `metrics`, the content of `metrics.json`, which lacks items
    that became unreadable later.

    Raises:
        SourceError: `failed.csv` is damaged.
    """
    found = [{"item": name, "reason": reason} for name, reason in metrics.get("left_out") or ()]
    return read_rows(Path(folder) / FAILED) or found


def read_rows(path: str | Path) -> list[dict[str, str]]:
    """Read the rows of a CSV file; empty if there is no such file.

    Raises:
        SourceError: The file is damaged.
    """
    if not Path(path).exists():
        return []
    try:
        with open(path, encoding="utf-8", newline="") as file:
            columns, *rows = csv_table.lines(file)
    except (UnicodeDecodeError, csv.Error) as error:
        raise SourceError(
            f"{path}: is damaged ({reason_of(error)}). Restore or remove it."
        ) from error
    names = [csv_table.unescaped(name) for name in columns.cells]
    if "\0" in "".join(names):
        raise SourceError(f"{path}: is damaged: it holds zeros. Restore or remove it.")
    if any(len(row.cells) != len(names) for row in rows):
        raise SourceError(
            f"{path}: is damaged: a line has another number of columns than the first. Restore or remove it."
        )
    return [dict(zip(names, map(csv_table.unescaped, row.cells), strict=True)) for row in rows]


def _escaped(value: Any) -> Any:
    """Put an apostrophe before a text that a spreadsheet would compute."""
    if isinstance(value, str) and csv_table.FORMULA.match(value) and not _is_number(value):
        return f"'{value}"
    return value


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def read_csv(path: str | Path) -> list[dict[str, float]]:
    """Read the rows of a CSV file of numbers; empty if there is no such file."""
    return [{key: float(value) for key, value in row.items()} for row in read_rows(path)]


@contextmanager
def folder_lock(folder: str | Path) -> Iterator[None]:
    """Lock a folder against other processes, on network file systems too."""
    with open(Path(folder) / ".lock", "a") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)  # released when the process ends in any way
        yield


def replace_row(path: str | Path, key: str, value: str, row: Mapping[str, Any] | None) -> None:
    """Replace a row of a table, safely while other processes replace theirs.

    `value` identifies the row to replace in the column `key`; without such a row, one is added. None as the row
    removes it, and the file with the last row.
    """
    if row is None and not Path(path).exists():
        return
    with folder_lock(Path(path).parent):
        others: list[Mapping[str, Any]] = [
            r for r in read_rows(path) if column(path, r, key) != value
        ]
        rows = others if row is None else [*others, row]
        if rows:
            write_csv(path, rows)
        else:
            Path(path).unlink(missing_ok=True)


def column(path: str | Path, row: Mapping[str, str], key: str) -> str:
    """The value of a row in a column of the table `path`.

    Raises:
        SourceError: The file has no such column.
    """
    if key not in row:
        raise SourceError(f"{path}: is damaged: it has no column '{key}'. Restore or remove it.")
    return row[key]


def create(path: str | Path) -> Path:
    """Create the folder of a new run, and return its path.

    Raises:
        FileExistsError: The folder already contains a run or parts of one, or is a file.
        SourceError: It holds files that tfbig did not write.
    """
    check_new(path)
    return output_folder.claim(path)


def check_new(path: str | Path) -> None:
    """Check that a folder can become that of a new run; nothing is written.

    Raises:
        FileExistsError: The folder already contains a run or parts of one, or is a file.
    """
    folder = Path(path)
    if (folder / CONFIG).exists():
        raise FileExistsError(
            f"{folder}: already contains a run. Resume it with --resume, or use another --out."
        )
    if found := [name for name in (CHECKPOINTS, MODEL, HISTORY) if (folder / name).exists()]:
        raise FileExistsError(
            f"{folder}: contains {', '.join(found)} of a run, but no {CONFIG}. Put {CONFIG} back to resume the run, or "
            "use another --out."
        )
    if folder.exists() and not folder.is_dir():
        raise FileExistsError(f"{folder}: is a file; expected a folder. Check --out.")


def epochs_done(path: str | Path) -> int:
    """Count the epochs in the history of a run, also if one of its lines is damaged."""
    history = Path(path) / HISTORY
    return max(len(history.read_bytes().splitlines()) - 1, 0) if history.exists() else 0


def check_checkpoints(path: str | Path) -> None:
    """Check that a run that has trained has a checkpoint, without which training would start again.

    A run that was killed before its first checkpoint may have one epoch in its history, and starts again.

    Raises:
        SourceError: The folder has results of training, but no checkpoint.
    """
    folder = Path(path)
    checkpoints, done = folder / CHECKPOINTS, epochs_done(folder)
    if any(checkpoints.glob("step-*")) or (done < 2 and not (folder / MODEL).exists()):
        return
    raise SourceError(
        f"{folder}: has results of {counted(done, 'epoch')}, but no file {CHECKPOINTS}/step-*, from which "
        f"--resume continues. Put the folder {CHECKPOINTS} back, or start a new run in another --out."
    )


def memory_bytes() -> tuple[int, int]:
    """The resident memory of this process in bytes: now, and its peak."""
    status = Path("/proc/self/status")
    if status.exists():
        lines = dict(line.split(":", 1) for line in status.read_text().splitlines())
        now, top = (int(lines[key].split()[0]) * 1024 for key in ("VmRSS", "VmHWM"))
        return now, top
    unit = 1 if sys.platform == "darwin" else 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    return peak, peak


class Recorder(keras.callbacks.Callback):
    """Callback that times the steps and writes the history after each epoch.

    Args:
        folder: Run folder.
        clock: Returns the time in seconds.

    Attributes:
        history: A row `{epoch, loss, ..., val_loss, ..., seconds_per_step}` for each epoch.
        new: Number of rows added by this process.
    """

    def __init__(self, folder: str | Path, clock: Callable[[], float] = time.perf_counter) -> None:
        super().__init__()
        self.folder = Path(folder)
        self.history: list[Mapping[str, Any]] = []
        self.new = 0
        self._clock = clock
        self._began = 0.0
        self._seconds: list[float] = []

    def checkpoint_state(self) -> dict[str, Any]:
        """The state that a checkpoint stores."""
        return {"history": self.history, "seconds": self._seconds}

    def restore_state(self, state: Mapping[str, Any]) -> None:
        """Restore the state of a checkpoint."""
        self.history, self._seconds = list(state["history"]), list(state["seconds"])

    def checkpoint_written(self) -> None:
        """Do nothing."""

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Start timing a step."""
        self._began = self._clock()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Stop timing a step."""
        self._seconds.append(self._clock() - self._began)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Append the epoch to the history and write it."""
        numbers = {key: float(value) for key, value in logs.items()}
        seconds = statistics.median(self._seconds)
        self.history.append({"epoch": epoch + 1, **numbers, "seconds_per_step": seconds})
        self._seconds = []
        self.new += 1
        write_csv(self.folder / HISTORY, self.history)
