"""The base of the tasks with a label for each bag or image: a class, survival, a number or several labels.

Such a task says what its bags or images are, its network, its batches, and how a split is predicted. What the label is,
its losses, its metrics and its results are those of the target.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tfbig.cli import failure_log, machine
from tfbig.cli.data import splits
from tfbig.cli.data.run_data import Data, items_of
from tfbig.cli.settings import target_settings
from tfbig.cli.tasks import fitting, risk_set_steps, run_results, targets
from tfbig.cli.tasks.target import Numbers, Row, Target
from tfbig.cli.tasks.task import Curve, History, Models, Task
from tfbig.data.worker_shards import ALL_BATCHES, Shard
from tfbig.results import run_folder
from tfbig.training import Epochs
from tfbig.units import ceil_div

S = TypeVar("S", bound=Any)


class Predicted(NamedTuple):
    """Predictions of a split `[n, width]`, figures of merit, and the attention of bags that were read whole."""

    predictions: Numbers
    merits: Mapping[str, float]
    attention: Sequence[Any] = ()


class LabelTask(Task[S]):
    """A task with a label for each bag or image.

    Attributes:
        items: What is labelled, in the plural.
        named: Setting that names the network.
    """

    items: ClassVar[str] = "images"
    named: ClassVar[str] = "encoder"

    @abstractmethod
    def opened(self, settings: S) -> Data:
        """Return the bags or images of the run."""

    @abstractmethod
    def sizes(self, part: Any) -> str:
        """Return how large the bags or images of a split are, in words."""

    @abstractmethod
    def network(self, settings: S, data: Data, num_outputs: int) -> Models:
        """Return new models that are not compiled, initialised from the seed."""

    @abstractmethod
    def batches(
        self,
        settings: S,
        data: Data,
        part: Any,
        shard: Shard = ALL_BATCHES,
        learns: bool = False,
        weights: npt.NDArray[np.float32] | None = None,
    ) -> tf.data.Dataset:
        """Return the batches of an epoch.

        Args:
            settings: Settings of the run.
            data: Data of the run.
            part: A split, with the labels of the target.
            shard: Batches of this worker, and the epoch to start with.
            learns: Whether it is trained on: shuffled, augmented, with `risk_set_steps.items_of_step` in a batch.
            weights: Weights of the classes, as `weights` returns them; None weighs none.
        """

    @abstractmethod
    def predicted(
        self, models: Models, settings: S, target: Target, part: Any, repeat: int = 0
    ) -> Predicted:
        """Predict a split; of several repeats, each draws other samples of bags."""

    @abstractmethod
    def first_columns(self, item: Any) -> Row:
        """Return what `predictions.csv` says of a bag or an image, before its label."""

    def draw(
        self,
        models: Models,
        settings: S,
        target: Target,
        data: Data,
        folder: Path,
        predicted: Predicted,
    ) -> None:
        """Draw some of the test set."""

    def loss(self, settings: S, target: Target) -> tuple[Any, Any]:
        """Return the losses of the outputs, and their weights."""
        return target.loss(), [fitting.loss_weight(settings)]

    def metrics(self, settings: S, target: Target, data: Data) -> Any:
        """Return new metrics of an epoch."""
        return target.metrics(data)

    def prefix(self, settings: S) -> str:
        """Return what Keras puts before the names of the metrics."""
        return ""

    def weights(self, settings: S, data: Data) -> npt.NDArray[np.float32] | None:
        """Return the weights of `--class-weights`, or None."""
        return fitting.class_weights(settings, data)

    def is_dense(self, settings: S) -> bool:
        """Return whether the model reads tensors instead of handles."""
        return machine.is_plain(settings)

    def batch_size(self, settings: S) -> int:
        """Return the number of bags or images that are validated at once."""
        return int(settings.batch_size)

    def repeats(self, settings: S) -> int:
        """Return how often the test set is predicted."""
        return 1

    def rows(
        self, models: Models, settings: S, target: Target, data: Data, predictions: Numbers
    ) -> list[Row]:
        """Return a row of `predictions.csv` for each bag or image of the test set."""
        test = data.judged
        return [
            {**self.first_columns(item), **target.truth(label, data), **target.columns(prediction)}
            for item, label, prediction in zip(
                items_of(test), test.labels, predictions, strict=True
            )
        ]

    def resolved(self, settings: S) -> S:
        """Return the settings with what an evaluated run decided, after checking that they fit the target."""
        target_settings.check(settings)
        if settings.test_only:
            settings = replace(settings, **targets.of_evaluated_run(settings))
        return settings

    def load(self, settings: S) -> Data:
        """Return the bags or images, and print what they are."""
        data = self.opened(settings)
        network = f"{self.named} {getattr(settings, self.named)}"
        print(f"mode {settings.mode}, {network}, precision {settings.precision}")
        decided = targets.decided(settings, data)
        target = targets.of(replace(settings, **decided), data)
        splits.print_counts(data, self.sizes, targets.counter(target))
        return replace(data, decided={**data.decided, **decided})

    def models(self, settings: S, data: Data) -> Models:
        """Return new models, compiled with one optimizer."""
        target = targets.of(settings, data)
        models = self.network(settings, data, target.num_outputs)
        batches = ceil_div(len(data.train.labels), settings.batch_size)
        optimizer = fitting.make_optimizer(settings, batches)
        metrics = partial(self.metrics, settings, target, data)
        return fitting.compile_both(models, optimizer, *self.loss(settings, target), metrics)

    def fit(self, models: Models, settings: S, data: Data, folder: Path) -> History:
        """Train from the last checkpoint, and return the history of all epochs."""
        target, weights = targets.of(settings, data), self.weights(settings, data)
        train, val = (
            replace(part, labels=target.labels(part, data)) for part in (data.train, data.val)
        )
        training = Epochs(
            ceil_div(len(train.labels), risk_set_steps.items_of_step(settings)),
            lambda shard: self.batches(settings, data, train, shard, True, weights),
            fitting.item_names(items_of(data.train), data.train.labels),
        )
        validation = Epochs(
            ceil_div(len(val.labels), self.batch_size(settings)),
            lambda shard: self.batches(settings, data, val, shard),
        )
        prefix = "" if settings.monitor == "loss" else self.prefix(settings)
        monitor = f"val_{prefix}{settings.monitor}"
        worker = risk_set_steps.worker_of(settings, self.is_dense(settings))
        return fitting.fit_and_keep(models, settings, folder, training, validation, monitor, worker)

    def curve(self, settings: S) -> Curve:
        """Return what the learning curve shows."""
        curves, prefix = targets.TARGETS[settings.target].curves, self.prefix(settings)
        labels = {name if name == "loss" else prefix + name: text for name, text in curves.items()}
        return Curve(labels, f"validation {self.items}")

    def write_results(
        self, models: Models, settings: S, data: Data, folder: Path, measured: Mapping[str, Any]
    ) -> None:
        """Write predictions, pictures, and last the metrics, of what can be read."""
        failure_log.write_readable(
            lambda rest: self._write(models, settings, rest, folder, measured),
            data,
            folder,
            settings.strict,
        )

    def _write(
        self, models: Models, settings: S, data: Data, folder: Path, measured: Mapping[str, Any]
    ) -> None:
        target = targets.of(settings, data)
        predicted = partial(self.predicted, models, settings, target)
        repeats = [predicted(data.judged, number) for number in range(self.repeats(settings))]
        drawn = [each.predictions for each in repeats]
        rows = self.rows(models, settings, target, data, np.mean(drawn, axis=0))
        run_folder.write_csv(folder / run_folder.PREDICTIONS, rows)
        reference = target.reference(
            lambda part: predicted(part).predictions, data, settings.test_only
        )
        results = target.write(folder, drawn, data.judged, reference)
        self.draw(models, settings, target, data, folder, repeats[0])
        means, deviations = means_and_deviations([each.merits for each in repeats])
        results["left_out"] = [list(reason) for reason in data.failed]
        if len(repeats) > 1:
            results |= {f"{key}_std": std for key, std in deviations.items()}
        tested_on = run_results.tested_on(settings, data)
        run_results.write_metrics(folder, settings, {**measured, **tested_on, **means, **results})
        run_results.print_results(means, folder)


def means_and_deviations(
    repeats: Sequence[Mapping[str, float]],
) -> tuple[dict[str, float], dict[str, float]]:
    """Return the mean and the standard deviation over repeats of each figure of merit that is not NaN.

    Args:
        repeats: Figures of merit by name.
    """
    names = [key for key, value in repeats[0].items() if value == value]
    values = {f"test_{key}": [each[key] for each in repeats] for key in names}
    return (
        {key: float(np.mean(numbers)) for key, numbers in values.items()},
        {key: float(np.std(numbers)) for key, numbers in values.items()},
    )
