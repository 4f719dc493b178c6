"""The base of the tasks with an output for every pixel: of slides, images, scenes and volumes.

Such a task says what its images, its network, its loss and its crops are, and how one image is judged. What follows
from that is said here once: the two models and their plans, the epochs of crops and of whole images, and the results.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, TypeVar

import keras
import numpy as np

import tfbig
from tfbig.cli import failure_log, machine
from tfbig.cli.data import background, dense_items, splits
from tfbig.cli.data.run_data import Data
from tfbig.cli.tasks import fitting, run_results
from tfbig.cli.tasks.task import History, Models, Plans, Task
from tfbig.data.worker_shards import Shard
from tfbig.results import run_folder
from tfbig.tasks import TASKS
from tfbig.training import Epochs
from tfbig.units import ceil_div

S = TypeVar("S", bound=Any)
Size = tuple[int, ...]
LOSSES = ("loss", "val_loss")


class Judged(NamedTuple):
    """The result of an image: its row of `predictions.csv`, and what the results of all images are made of."""

    row: Mapping[str, Any]
    counts: Any = None


class DenseTask(Task[S]):
    """A task with an output for every pixel.

    Methods take the settings of the run, with what the data decide, and its data, and hold neither.

    Attributes:
        parts: Attributes of an image that are sources: image, labels and, where some pixels have none, weights.
        pictures: Largest number of images that are drawn; None for all.
        means: Columns of `predictions.csv` whose means are results; a name with `*` at its end stands for all columns
            that begin so.
    """

    measured: tuple[str, ...] = ("loss", "val_loss", "dice", "val_dice", "seconds_per_step")
    parts: ClassVar[Sequence[str]] = dense_items.LABELLED
    pictures: ClassVar[int | None] = 12
    means: ClassVar[Sequence[str]] = ()

    @abstractmethod
    def opened(self, settings: S) -> Data:
        """Open the data of the run, and print what they are."""

    def classes(self, settings: S, data: Data) -> Sequence[str]:
        """The names of the classes of the labels; empty where `opened` says which of them are missing."""
        return ()

    @abstractmethod
    def network(self, settings: S, data: Data) -> keras.Model:
        """Build a new network."""

    @abstractmethod
    def loss(self, settings: S) -> Any:
        """A new loss."""

    @abstractmethod
    def metrics(self, settings: S, data: Data) -> list[keras.metrics.Metric]:
        """New metrics of training and validation."""

    @abstractmethod
    def crop(self, settings: S) -> Size | None:
        """The size of a crop, or None for whole images."""

    @abstractmethod
    def training(self, settings: S, data: Data) -> Epochs:
        """The epochs of crops or whole images to train on."""

    @abstractmethod
    def judge(
        self, models: Models, settings: S, data: Data, item: Any, folder: Path, draws: bool
    ) -> Judged:
        """Predict a whole image, compare the prediction with the labels and draw both."""

    def padded(self, settings: S, data: Data, item: Any) -> Any:
        """Pad a whole image as the network reads it, to rows and columns that its strides divide."""
        return item

    def validated(self, settings: S, data: Data) -> Sequence[Any]:
        """The whole images that an epoch is validated on."""
        return [self.padded(settings, data, item) for item in data.val.items]

    def largest_validated(self, settings: S, data: Data) -> Any:
        """The image, or the shape of a batch, of the largest step of validation."""
        return _largest(self.validated(settings, data))

    def streamed(self, settings: S, twin: keras.Model) -> Any:
        """Stream a network: run it strip by strip with its own variables."""
        return tfbig.stream(twin, machine.budget(settings), devices=settings.devices)

    def predicting(self, models: Models, settings: S) -> Models:
        """The models that predict whole images after training."""
        return models

    def identity(self, item: Any) -> str:
        """The text by which a resumed run recognises an image, wherever it is stored."""
        return f"{item.name} {item.image.shape}"

    def count(self, settings: S, data: Data) -> int:
        """Count the crops or whole images of an epoch."""
        return int(settings.crops) if self.crop(settings) else len(data.train.items)

    def steps(self, settings: S, data: Data) -> int:
        """Count the batches of an epoch; the last may be smaller."""
        return ceil_div(self.count(settings, data), int(settings.batch_size))

    def load(self, settings: S) -> Data:
        """Return the data of the run, and warn of classes that a split does not have, on one worker of several."""
        data = self.opened(settings)
        if not machine.is_chief():
            return data
        names, kind = self.classes(settings, data), TASKS[settings.task].items
        for split, part in data.sets.items():
            missing = dense_items.missing_classes(part.items, len(names))
            splits.warn_of_missing(split, kind, [names[number] for number in missing])
        return data

    def models(self, settings: S, data: Data) -> Models:
        """Build models, initialised from the seed; a plain twin has no metrics, so that any Keras can load it."""
        keras.config.set_dtype_policy(settings.precision)
        keras.utils.set_random_seed(settings.seed)
        twin = machine.synchronize_norm(settings, self.network(settings, data))
        model = twin if machine.is_plain(settings) else self.streamed(settings, twin)
        optimizer = fitting.make_optimizer(settings, self.steps(settings, data))
        loss, weights = self.loss(settings), [fitting.loss_weight(settings)]
        if model is not twin:
            twin.compile(optimizer, loss, loss_weights=weights)
        kind = "weighted_metrics" if self.parts == dense_items.WEIGHTED else "metrics"
        metrics = {kind: self.metrics(settings, data)}
        model.compile(optimizer, loss, loss_weights=weights, **metrics)
        return Models(model, twin)

    def plans(self, models: Models, settings: S, data: Data) -> Plans | None:
        """The plans of the largest steps; plain Keras has none."""
        if settings.test_only or models.model is models.twin:
            return None
        return self.plans_of(models.model, settings, data)

    def plans_of(self, model: Any, settings: S, data: Data) -> Plans:
        """The plans of the largest steps of a streamed model."""
        train, crop = data.train.items, self.crop(settings)
        if crop:
            largest: Any = (settings.batch_size, *crop, train[0].image.shape[-1])
        else:
            largest = _largest(self.padded(settings, data, item) for item in train)
            if settings.batch_size > 1:
                largest = (settings.batch_size, *largest.shape)
        validation = model.plan(self.largest_validated(settings, data), training=False)
        return Plans(model.plan(largest), validation)

    def fit(self, models: Models, settings: S, data: Data, folder: Path) -> History:
        """Train from the last checkpoint, and return the history of all epochs."""
        training, validation = self.training(settings, data), self.validation(settings, data)
        monitor = f"val_{settings.monitor}"
        return fitting.fit_and_keep(models, settings, folder, training, validation, monitor)

    def epochs_of(
        self, settings: S, data: Data, draw: Callable[[Sequence[int]], Sequence[Any]]
    ) -> Epochs:
        """Epochs of crops or whole images that are drawn before each epoch and read strip by strip."""
        count, size = self.count(settings, data), settings.batch_size

        @lru_cache(maxsize=2)  # a dataset does not hold its crops
        def drawn(epoch: int) -> Sequence[Any]:
            return draw([settings.seed, epoch])

        def batches(shard: Shard) -> Any:
            return self._batches(settings, data, drawn(shard.epoch), shard.items(count, size), size)

        names = [self.identity(item) for item in data.train.items]
        return Epochs(self.steps(settings, data), batches, names)

    def validation(self, settings: S, data: Data) -> Epochs:
        """The epochs of what is validated on, one image at a time."""
        images = self.validated(settings, data)

        def batches(shard: Shard) -> Any:
            return self._batches(settings, data, images, shard.items(len(images), 1), 1)

        return Epochs(len(images), batches)

    def _batches(
        self, settings: S, data: Data, images: Sequence[Any], chosen: Sequence[int], size: int
    ) -> Any:
        """Make batches of some of the images."""
        like, dense = data.train.items[0], machine.is_plain(settings)
        return dense_items.dataset([images[i] for i in chosen], like, self.parts, size, dense)

    def write_results(
        self, models: Models, settings: S, data: Data, folder: Path, measured: Mapping[str, Any]
    ) -> None:
        """Write pictures and a row for each image, and last the metrics, with means over the images."""
        judged = list[Judged]()
        models = self.predicting(models, settings)

        def judge(item: Any) -> Judged:
            draws = self.pictures is None or len(judged) < self.pictures
            return self.judge(models, settings, data, item, folder, draws)

        for _, each in failure_log.results_of(data.judged.items, judge, folder, settings.strict):
            judged.append(each)
        run_folder.write_csv(folder / run_folder.PREDICTIONS, [each.row for each in judged])
        results = self.results(settings, judged, folder)
        metrics = {**measured, **run_results.tested_on(settings, data), **results}
        metrics[TASKS[settings.task].items] = len(judged)
        if "peak_bytes" not in metrics:
            metrics["peak_bytes"] = run_folder.memory_bytes()[1]
        run_results.write_metrics(folder, settings, metrics)
        losses = {name: measured[name] for name in LOSSES if name in measured}
        run_results.print_results({**losses, **results}, folder)
        if line := self.advice(settings, results):
            print(line)

    def results(self, settings: S, judged: Sequence[Judged], folder: Path) -> dict[str, float]:
        """The results of all images: the mean, and of several the standard deviation, of some columns."""
        return over_items([each.row for each in judged], self.means)

    def advice(self, settings: S, results: Mapping[str, float]) -> str:
        """Say in one line what to do about the results; empty if nothing."""
        return ""


def over_items(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> dict[str, float]:
    """Average columns over the rows in which they are defined; of several rows, the standard deviation too.

    A name in `columns` with `*` at its end stands for all that begin so.
    """
    means, deviations = dict[str, float](), dict[str, float]()
    for name in rows[0]:
        named = (name == c or (c.endswith("*") and name.startswith(c[:-1])) for c in columns)
        values = [row[name] for row in rows if row[name] is not None] if any(named) else []
        if values:
            means[f"test_{name}"] = float(np.mean(values))
            deviations[f"test_{name}_std"] = float(np.std(values))
    return means | deviations if len(rows) > 1 else means


def _largest(items: Any) -> Any:
    """The image with the most pixels that are computed."""
    return max((item.image for item in items), key=background.foreground_pixels)
