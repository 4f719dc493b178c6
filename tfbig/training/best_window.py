"""The model of a run chosen by a moving average over windows of epochs."""

from __future__ import annotations

import math
import re
import shutil
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import keras

from tfbig.results.run_folder import save_model
from tfbig.sources.writing import beside


def chosen(values: Sequence[float], window: int) -> int:
    """The epoch with the lowest value in the window of epochs with the lowest average.

        windows = [values[i : i + window] for i in range(len(values) - window + 1)]
        start = argmin([mean(w) for w in windows])
        epoch = start + argmin(windows[start])

    the earliest of those that are equal. Fewer epochs than a window are one window. Averages are
    compared exactly. What is not finite is worse than any number, more of it worse than less.

    Args:
        values: One of each epoch, at least one.
        window: Epochs of a window.

    Returns:
        The index into `values`.
    """
    exact = [_exact(value) for value in values]
    ends = list(accumulate(exact, initial=0))
    window = min(window, len(values))
    sums = [stop - start for start, stop in zip(ends, ends[window:], strict=False)]
    start = sums.index(min(sums))
    part = exact[start : start + window]
    return start + part.index(min(part))


def may_be_chosen(epoch: int, values: Sequence[float], window: int) -> bool:
    """Whether `chosen` gives this epoch for `values`, or could once more epochs follow.

    Of all that may follow, epochs with the value of this one serve it best. A lower one would itself
    be the lowest of their window. A higher one makes the windows that end with it worse by as much as
    any before them, or more. So no other future has to be tried.
    """
    value = values[epoch]
    return any(chosen([*values, *[value] * more], window) == epoch for more in range(window))


def _exact(value: float) -> int:
    """`value * 2**1074`, whole for every float64; beyond all sums of those if it is not finite."""
    if not math.isfinite(value):
        return 1 << 4096
    numerator, denominator = value.as_integer_ratio()
    return (numerator << 1074) // denominator


class BestWindow(keras.callbacks.Callback):
    """Keeps the best epoch of the best window of epochs: the model choice of ABMIL-ACC.

    A moving average of the monitored value finds where training is good and steady; of the epochs in
    that window, the one with the lowest value is kept (section 4.1 of the paper). One lucky epoch among
    bad ones does not win. See `chosen` for the rule.

    After each epoch `path` is the choice among the epochs so far, whole whenever a run is stopped.
    Epochs that a later window may choose are kept in `folder`, as `.epoch-<number>-<name>`, and
    deleted as soon as no future could choose them (`may_be_chosen`): at most `window` files and one,
    mostly two for a loss that falls with noise. No number that does not grow with `window` would do:
    after 1, 9, 2, 9, 3, 9 each low epoch may be the lowest of a best window to come. None are left when
    `fit` ends, and each `fit` chooses among its own epochs only. A `tfbig.training.Loop` that goes on from a checkpoint
    chooses among all of its epochs; what the two kept checkpoints need stays.

    Args:
        path: Where the choice is written, `*.weights.h5` (weights) or `*.keras` (model and
            optimiser).
        monitor: What is lowest in a good epoch, a key of the logs of `fit`.
        window: Epochs of a window; with 1 the best epoch is chosen. A run of fewer epochs is one window.
        mode: "min", or "max" where what is monitored is highest in a good epoch.
        folder: Where epochs are kept that a later window may choose; by default that of `path`.

    Attributes:
        values: The monitored value of each epoch of this `fit`, negative with "max".

    Raises:
        ValueError: `path` has another ending, `window` is no positive integer, `mode` is neither, or the
            logs have no `monitor`.
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
        self._kept: set[int] = set()
        self._chosen: int | None = None
        self._goes_on = False
        self._checkpoints: int | None = None  # that were written; None where there are none
        self._doomed: list[tuple[int, int]] = []

    def remembered(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        self._checkpoints = self._checkpoints or 0
        return {"values": self.values, "of": [self.monitor, self.window, self.mode]}

    def remember(self, found: Mapping[str, Any]) -> None:
        """Goes on from there; an epoch whose file is gone can be chosen no more.

        Raises:
            ValueError: it was chosen by other values.
        """
        own = [self.monitor, self.window, self.mode]
        if found["of"] != own:
            raise ValueError(f"BestWindow: epochs were chosen by {found['of']}, not by {own}.")
        self.values, self._chosen = [float(v) for v in found["values"]], None
        self._goes_on, self._checkpoints = True, 0
        for epoch in range(len(self.values)):
            if may_be_chosen(epoch, self.values, self.window):
                self._kept.add(epoch)
        missing = {epoch for epoch in self._kept if not self._candidate(epoch).exists()}
        for epoch in missing:
            self.values[epoch] = math.inf
        self._kept -= missing

    def written(self) -> None:
        """A checkpoint has been written: files that neither of the last two needs go."""
        self._checkpoints = (self._checkpoints or 0) + 1
        due = [epoch for epoch, number in self._doomed if number + 2 <= self._checkpoints]
        self._doomed = [(e, n) for e, n in self._doomed if e not in due]
        for epoch in due:
            self._candidate(epoch).unlink(missing_ok=True)

    def on_train_begin(self, logs: Any = None) -> None:
        if not self._goes_on:
            self.values, self._kept, self._chosen = [], set(), None
        self._goes_on = False
        for folder in (self.path.parent, self.folder):
            folder.mkdir(parents=True, exist_ok=True)
        for file in list(self.folder.iterdir()):
            found = re.fullmatch(rf"\.epoch-(\d+)-{re.escape(self.path.name)}", file.name)
            epoch = int(found[1]) - 1 if found else None
            if epoch is None or epoch in self._kept:
                continue
            if epoch < len(self.values):
                self._doomed.append((epoch, 0))  # the checkpoint before may need it
            else:
                file.unlink()  # of a run that was killed

    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        self.values.append(self._monitored(logs or {}))
        newest = len(self.values) - 1
        if may_be_chosen(newest, self.values, self.window):
            self._save(newest)
        self._copy_choice()
        for kept in sorted(self._kept):
            if not may_be_chosen(kept, self.values, self.window):
                self._delete(kept)

    def on_train_end(self, logs: Any = None) -> None:
        if self._checkpoints is not None:
            return  # from them training may go on
        for kept in sorted(self._kept):
            self._delete(kept)

    def _monitored(self, logs: Mapping[str, Any]) -> float:
        if self.monitor not in logs:
            raise ValueError(
                f"BestWindow: the logs of an epoch have {sorted(logs)}, expected '{self.monitor}'. "
                "Give fit validation_data, or monitor= one of these."
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
            with beside(path) as part:
                self.model.save_weights(part)
        self._kept.add(epoch)

    def _copy_choice(self) -> None:
        choice = chosen(self.values, self.window)
        if choice != self._chosen and choice in self._kept:
            with beside(self.path) as part:
                shutil.copyfile(self._candidate(choice), part)
            self._chosen = choice

    def _delete(self, epoch: int) -> None:
        self._kept.remove(epoch)
        if self._checkpoints is None:
            self._candidate(epoch).unlink()
        else:
            self._doomed.append((epoch, self._checkpoints))
