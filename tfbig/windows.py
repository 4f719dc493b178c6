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

from tfbig.runfolder import save_model
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
    Epochs that a later window may choose are kept beside it, as `.epoch-<number>-<name>`, and
    deleted as soon as no future could choose them (`may_be_chosen`): at most `window` files and one,
    mostly two for a loss that falls with noise. No number that does not grow with `window` would do:
    after 1, 9, 2, 9, 3, 9 each low epoch may be the lowest of a best window to come. None are left when
    training ends. Each `fit` chooses among its own epochs only.

    Args:
        path: Where the choice is written, `*.weights.h5` (weights) or `*.keras` (model and
            optimiser).
        monitor: What is lowest in a good epoch, a key of the logs of `fit`.
        window: Epochs of a window. A run of fewer epochs is one window.

    Attributes:
        values: The monitored value of each epoch of this `fit`.

    Raises:
        ValueError: `path` has another ending, `window` is no positive integer, or the logs have no
            `monitor`.
    """

    def __init__(self, path: str | Path, monitor: str = "val_loss", window: int = 15) -> None:
        super().__init__()
        self.path = Path(path)
        if not self.path.name.endswith((".weights.h5", ".keras")):
            raise ValueError(f"BestWindow: path is {path}, expected *.weights.h5 or *.keras.")
        if not isinstance(window, int) or window < 1:
            raise ValueError(f"BestWindow: window is {window!r}, expected an integer of 1 or more.")
        self.monitor = monitor
        self.window = window
        self.values: list[float] = []
        self._kept: set[int] = set()
        self._chosen: int | None = None

    def on_train_begin(self, logs: Any = None) -> None:
        self.values, self._kept, self._chosen = [], set(), None
        self.path.parent.mkdir(parents=True, exist_ok=True)
        for file in list(self.path.parent.iterdir()):
            if re.fullmatch(rf"\.epoch-\d+-{re.escape(self.path.name)}", file.name):
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
        for kept in sorted(self._kept):
            self._delete(kept)

    def _monitored(self, logs: Mapping[str, Any]) -> float:
        if self.monitor not in logs:
            raise ValueError(
                f"BestWindow: the logs of an epoch have {sorted(logs)}, expected '{self.monitor}'. "
                "Give fit validation_data, or monitor= one of these."
            )
        return float(logs[self.monitor])

    def _candidate(self, epoch: int) -> Path:
        return self.path.with_name(f".epoch-{epoch + 1}-{self.path.name}")

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
        if choice != self._chosen:
            with beside(self.path) as part:
                shutil.copyfile(self._candidate(choice), part)
            self._chosen = choice

    def _delete(self, epoch: int) -> None:
        self._candidate(epoch).unlink()
        self._kept.remove(epoch)
