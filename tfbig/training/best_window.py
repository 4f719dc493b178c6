"""Model selection by a moving average over windows of epochs."""

from __future__ import annotations

import math
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import keras

from tfbig.sources.writing import atomic_write
from tfbig.system import keras_internals


def save_model(path: str | Path, model: keras.Model) -> None:
    """Save a Keras model as a `.keras` file, atomically.

    Raises:
        SourceError: The file cannot be written.
    """
    with atomic_write(path) as part:
        model.save(part)


def best_epoch(values: Sequence[float], window: int) -> int:
    """Return the epoch with the lowest value in the window of epochs with the lowest average.

        windows = [values[i : i + window] for i in range(len(values) - window + 1)]
        start = argmin([mean(w) for w in windows])
        epoch = start + argmin(windows[start])

    In a tie the earliest is returned. If there are fewer epochs than a window, all of them are one window. Averages
    are compared exactly. A window with more values that are not finite is worse than one with fewer.

    Args:
        values: Value of each epoch, at least one.
        window: Number of epochs in a window.

    Returns:
        Index into `values`.
    """
    exact = [_exact(value) for value in values]
    ends = list(accumulate(exact, initial=0))
    window = min(window, len(values))
    sums = [stop - start for start, stop in zip(ends, ends[window:], strict=False)]
    start = sums.index(min(sums))
    best = exact[start : start + window]
    return start + best.index(min(best))


def can_be_best(epoch: int, values: Sequence[float], window: int) -> bool:
    """Return whether `best_epoch` selects an epoch now, or can select it after more epochs.

    Of all possible later epochs, those with the same value favour this epoch most. A lower value would itself be the
    lowest of their window. A higher value makes the windows that end with it worse by at least as much as any window
    before. So no other future has to be tried.

    Args:
        epoch: Index of the epoch.
        values: Value of each epoch so far.
        window: Number of epochs in a window.

    Returns:
        Whether the epoch must be retained.
    """
    value = values[epoch]
    return any(best_epoch([*values, *[value] * more], window) == epoch for more in range(window))


def _exact(value: float) -> int:
    """Return `value * 2**1074`, an integer for every float64; if not finite, a number above all their sums."""
    if not math.isfinite(value):
        return 1 << 4096
    numerator, denominator = value.as_integer_ratio()
    return (numerator << 1074) // denominator


def _link_or_copy(source: Path, target: Path) -> None:
    """Give a file a second name, or copy it if the file system cannot."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


class BestWindow(keras.callbacks.Callback):
    """Callback that retains the best epoch of the best window of epochs: the model selection of ABMIL-ACC.

    A moving average of the monitored value finds the window where training is good and steady; of the epochs in that
    window, the one with the lowest value is selected (section 4.1 of the paper). One lucky epoch among bad ones is not
    selected. See `best_epoch` for the rule.

    After each epoch `path` contains the selection among the epochs so far; it is a complete file whenever a run is
    stopped. Epochs that can still be selected are retained in `folder`, as `.epoch-<number>-<name>`, and deleted as
    soon as no future can select them (`can_be_best`): at most `window + 1` files, mostly two for a loss that falls with
    noise. A limit that does not grow with `window` is impossible: after 1, 9, 2, 9, 3, 9 each low epoch can be the
    lowest of a later best window. All are deleted when `fit` ends, and each `fit` selects among its own epochs only. A
    `tfbig.training.Loop` that resumes from a checkpoint selects among all of its epochs; files that the two retained
    checkpoints need are not deleted, also when all epochs are done, because a resumed run can have more. `path` and the
    file of its epoch are two names of one file (a hard link), so that the weights are on disk once; where the file
    system has no such links, `path` is a copy.

    Args:
        path: File of the selection, `*.weights.h5` (weights) or `*.keras` (model and optimizer).
        monitor: Key of the logs of `fit` to monitor.
        window: Number of epochs in a window; with 1 the best epoch is selected. A run of fewer epochs is one window.
        mode: "min" if lower values are better, or "max".
        folder: Folder of the retained epochs; by default the folder of `path`.

    Attributes:
        values: Monitored value of each epoch of this `fit`, negated with "max".

    Raises:
        ValueError: `path` has another suffix, `window` is not a positive integer, `mode` is invalid, or the logs do
            not contain `monitor`.
    """

    def __init__(
        self,
        path: str | Path,
        monitor: str = "val_loss",
        window: int = 15,
        mode: str = "min",
        folder: str | Path | None = None,
    ) -> None:
        super().__init__()
        self.path = Path(path)
        if not self.path.name.endswith((".weights.h5", ".keras")):
            raise ValueError(f"BestWindow: path is {path}, expected *.weights.h5 or *.keras.")
        if not isinstance(window, int) or window < 1:
            raise ValueError(f"BestWindow: window is {window!r}, expected an integer of 1 or more.")
        if mode not in ("min", "max"):
            raise ValueError(f"BestWindow: mode is {mode!r}, expected 'min' or 'max'.")
        self.monitor = monitor
        self.window = window
        self.mode = mode
        self.folder = self.path.parent if folder is None else Path(folder)
        self.values: list[float] = []
        self._retained: set[int] = set()
        self._selected: int | None = None
        self._resumed = False
        # Checkpoints written so far; None: training writes none.
        self._checkpoints: int | None = None
        self._doomed: list[tuple[int, int]] = []

    def checkpoint_state(self) -> dict[str, Any]:
        """Return the state that a checkpoint stores."""
        self._checkpoints = self._checkpoints or 0
        return {"values": self.values, "of": [self.monitor, self.window, self.mode]}

    def restore_state(self, state: Mapping[str, Any]) -> None:
        """Restore the state of a checkpoint; an epoch whose file is missing cannot be selected any more.

        Raises:
            ValueError: `monitor`, `window` or `mode` differs.
        """
        settings = [self.monitor, self.window, self.mode]
        if state["of"] != settings:
            raise ValueError(
                f"BestWindow: epochs were selected by {state['of']}, not by {settings}."
            )
        self.values, self._selected = [float(v) for v in state["values"]], None
        self._resumed, self._checkpoints = True, 0
        for epoch in range(len(self.values)):
            if can_be_best(epoch, self.values, self.window):
                self._retained.add(epoch)
        missing = {epoch for epoch in self._retained if not self._candidate(epoch).exists()}
        for epoch in missing:
            self.values[epoch] = math.inf
        self._retained -= missing

    def checkpoint_written(self) -> None:
        """Delete files that neither of the last two checkpoints needs."""
        self._checkpoints = (self._checkpoints or 0) + 1
        due = [epoch for epoch, number in self._doomed if number + 2 <= self._checkpoints]
        self._doomed = [(e, n) for e, n in self._doomed if e not in due]
        for epoch in due:
            self._candidate(epoch).unlink(missing_ok=True)

    def on_train_begin(self, logs: Any = None) -> None:
        """Delete files that a stopped run left."""
        if not self._resumed:
            self.values, self._retained, self._selected = [], set(), None
        self._resumed = False
        for folder in (self.path.parent, self.folder):
            folder.mkdir(parents=True, exist_ok=True)
        for file in list(self.folder.iterdir()):
            match = re.fullmatch(rf"\.epoch-(\d+)-{re.escape(self.path.name)}", file.name)
            epoch = int(match[1]) - 1 if match else None
            if epoch is None or epoch in self._retained:
                continue
            if epoch < len(self.values):
                self._doomed.append((epoch, 0))  # the previous checkpoint may need it
            else:
                file.unlink()  # from a killed run

    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Save the epoch if it can be selected, and update the selection."""
        self.values.append(self._monitored(logs or {}))
        newest = len(self.values) - 1
        if can_be_best(newest, self.values, self.window):
            self._save(newest)
        self._copy_selection()
        for retained in sorted(self._retained):
            if not can_be_best(retained, self.values, self.window):
                self._delete(retained)

    def on_train_end(self, logs: Any = None) -> None:
        """Delete the retained epochs, unless training can be resumed from checkpoints."""
        if self._checkpoints is not None:
            return
        for retained in sorted(self._retained):
            self._delete(retained)

    def _monitored(self, logs: Mapping[str, Any]) -> float:
        if self.monitor not in logs:
            raise ValueError(
                f"BestWindow: the logs of an epoch have {sorted(logs)}, expected '{self.monitor}'. "
                "Pass validation_data to fit, or one of these as monitor."
            )
        value = float(logs[self.monitor])
        return -value if self.mode == "max" else value

    def _candidate(self, epoch: int) -> Path:
        return self.folder / f".epoch-{epoch + 1}-{self.path.name}"

    def _save(self, epoch: int) -> None:
        path = self._candidate(epoch)
        if path.name.endswith(".keras"):
            save_model(path, self.model)
        else:
            with atomic_write(path) as part:
                part.write_bytes(keras_internals.weights_file(self.model))
        self._retained.add(epoch)

    def _copy_selection(self) -> None:
        selected = best_epoch(self.values, self.window)
        if selected != self._selected and selected in self._retained:
            with atomic_write(self.path) as part:
                _link_or_copy(self._candidate(selected), part)
            self._selected = selected

    def _delete(self, epoch: int) -> None:
        self._retained.remove(epoch)
        if self._checkpoints is None:
            self._candidate(epoch).unlink()
        else:
            self._doomed.append((epoch, self._checkpoints))
