"""Train the gigapixel U-Net to tell tissue from background on whole slides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import keras

import tfbig
from tfbig import sources
from tfbig.cli import machine, paths
from tfbig.cli.data import background, slide_splits, slides_and_masks
from tfbig.cli.data.slide_splits import SlideSplits
from tfbig.cli.data.slides_and_masks import LabelledSlide
from tfbig.cli.settings.choices import WHOLE
from tfbig.cli.settings.tasks import SegmentationSettings
from tfbig.cli.settings.value_types import crop_size
from tfbig.cli.tasks import fitting, run_results, segmentation_results
from tfbig.cli.tasks.task import Curve, History, Models, Plans, Task
from tfbig.data.worker_shards import Shard
from tfbig.metrics import Dice
from tfbig.models.gigapixel_unet import gigapixel_unet
from tfbig.training import Epochs
from tfbig.units import counted

LOSS = "binary_crossentropy"
VOLUMES = ("dataset.json", "volumes.csv")
"""Files that mark a data set of volumes."""
EXAMPLE_DATA = Path(__file__).parents[3] / "examples" / "data"


@dataclass(frozen=True)
class SegmentationData:
    """Slides of a run.

    Attributes:
        slides: Slides by split.
        decided: Not used.
    """

    slides: SlideSplits
    decided: Mapping[str, Any] = field(default_factory=dict)

    @property
    def failed(self) -> Sequence[tuple[str, str]]:
        """Return `(name, reason)` of slides that were skipped."""
        return self.slides.failed

    @property
    def table(self) -> Sequence[Mapping[str, Any]]:
        """Return rows that say which slide is in which split; none without a table."""
        return self.slides.table

    @property
    def unseen(self) -> tuple[LabelledSlide, ...]:
        """Return the slides of the results: those to test on, or if there are none, those for validation."""
        return self.slides.test or self.slides.val


class Segmentation(Task[SegmentationSettings, SegmentationData]):
    """Training and evaluation with `--task segmentation`."""

    measured = ("loss", "val_loss", "dice", "val_dice", "seconds_per_step")

    def resolved(self, settings: SegmentationSettings) -> SegmentationSettings:
        """Return the settings with the slides of the checkout, if there are no others.

        Raises:
            FlagError: There is no `--data`, and no checkout with examples.
        """
        if settings.data is None and not EXAMPLE_DATA.is_dir():
            raise paths.FlagError(
                "--data FOLDER is missing: the folder of your slides, such as --data my_slides. Only a checkout of "
                "tfbig has slides of its own, in examples/data. For other data: --task mil --help, --task images "
                "--help."
            )
        if settings.data and any((Path(settings.data) / name).exists() for name in VOLUMES):
            raise paths.FlagError(
                f"--data {settings.data}: is a data set of volumes; expected slides. Use --task volume-segmentation."
            )
        settings = background.resolved(settings)
        return replace(settings, data=settings.data or str(EXAMPLE_DATA))

    def load(self, settings: SegmentationSettings) -> SegmentationData:
        """Return the slides, and print what they are."""
        slides = slide_splits.load(settings)
        if settings.test_only:
            print(f"evaluating {settings.test_only} on {_names(slides.test)}", flush=True)
        else:
            _check_training(settings, slides)
            _print_slides(settings, slides)
        if settings.background == "skip":
            all_slides = (*slides.train, *slides.val, *slides.test)
            print(background.describe((s.name, s.image) for s in all_slides), flush=True)
        return SegmentationData(slides)

    def models(self, settings: SegmentationSettings, data: SegmentationData) -> Models:
        """Return new models; the plain one is compiled without metrics, so that any Keras can load it."""
        models = make_both(settings)
        optimizer = fitting.make_optimizer(settings, _steps(settings, data.slides))
        weights = [fitting.loss_weight(settings)]
        models.twin.compile(optimizer, LOSS, loss_weights=weights)
        models.model.compile(optimizer, LOSS, loss_weights=weights, metrics=[Dice()])
        return models

    def plans(
        self, models: Models, settings: SegmentationSettings, data: SegmentationData
    ) -> Plans | None:
        """Return the plans of a step; plain Keras is a plan of one strip."""
        if settings.test_only:
            return None
        size = _size(settings)
        return Plans(
            plan_of(
                models, (settings.batch_size, *size, 1) if size else largest(data.slides.train)
            ),
            plan_of(models, largest(data.slides.val), training=False),
        )

    def fit(
        self,
        models: Models,
        settings: SegmentationSettings,
        data: SegmentationData,
        folder: Path,
    ) -> History:
        """Train from the last checkpoint, and return the history of all epochs."""
        epochs, validation = _epochs(settings, data.slides)
        monitor = f"val_{settings.monitor}"
        return fitting.fit_and_keep(models, settings, folder, epochs, validation, monitor)

    def curve(self, settings: SegmentationSettings) -> Curve:
        """Return what the learning curve shows."""
        return Curve({"loss": "binary cross-entropy", "dice": "Dice"}, "validation slides")

    def write_results(
        self,
        models: Models,
        settings: SegmentationSettings,
        data: SegmentationData,
        folder: Path,
        measured: Mapping[str, Any],
    ) -> None:
        """Write pictures, and last the metrics."""
        measured = {**measured, **run_results.tested_on(settings, data.slides.test)}
        segmentation_results.write(models, settings, data.unseen, folder, measured)


def _names(slides: Sequence[LabelledSlide]) -> str:
    """Return the names of slides, or the first and their number."""
    names = [slide.name for slide in slides]
    return ", ".join(names) if len(names) <= 10 else f"{names[0]} and {len(names) - 1} others"


def _check_training(settings: SegmentationSettings, slides: SlideSplits) -> None:
    """Check that the crops fit.

    Raises:
        SourceError: A slide is smaller than a crop.
        FlagError: Whole slides, which differ in size, are to be batched.
    """
    size = _size(settings)
    if size:
        slides_and_masks.check_crop(slides.train, size)
    elif settings.batch_size > 1:
        raise paths.FlagError(
            f"--batch-size {settings.batch_size}: whole slides differ in size. Use --batch-size 1, and --accumulate to "
            "average gradients."
        )


def _print_slides(settings: SegmentationSettings, slides: SlideSplits) -> None:
    """Print what is trained, validated and tested on."""
    print(f"mode {settings.mode}, precision {settings.precision}, seed {settings.seed}")
    crops = f"{settings.crops} crops of {settings.crop} from " if _size(settings) else "all of "
    print(f"training on {crops}{_names(slides.train)}")
    print(f"validating on all of {_names(slides.val)}, not trained on")
    if slides.test:
        print(f"testing on all of {_names(slides.test)}, not trained on")
    every = (*slides.train, *slides.val, *slides.test)
    computed = [slide.name for slide in every if slide.means is not None]
    if len(computed) < len(every):
        line = f"labels: {counted(len(every) - len(computed), 'mask')}"
        print(f"{line}; computed tissue of {', '.join(computed)}" if computed else line)


def _size(settings: SegmentationSettings) -> tuple[int, int] | None:
    """Return rows and columns of a crop, or None for whole slides."""
    return None if settings.crop == WHOLE else crop_size(settings.crop)


def _items(settings: SegmentationSettings, slides: SlideSplits) -> int:
    """Return the number of crops or whole slides of an epoch."""
    return settings.crops if _size(settings) else len(slides.train)


def _steps(settings: SegmentationSettings, slides: SlideSplits) -> int:
    """Return the number of batches of an epoch; the last may be smaller."""
    return -(-_items(settings, slides) // settings.batch_size)


def largest(slides: Sequence[LabelledSlide]) -> sources.Source:
    """Return the image of the slide with the most foreground, with its padding.

    Args:
        slides: The slides.
    """
    return max((s.padded().image for s in slides), key=background.foreground_pixels)


def make_both(settings: SegmentationSettings) -> Models:
    """Return new models, initialised from the seed."""
    keras.config.set_dtype_policy(settings.precision)
    keras.utils.set_random_seed(settings.seed)
    twin = machine.synchronize_norm(settings, gigapixel_unet())
    return Models(twin if machine.is_plain(settings) else _stream(twin, settings), twin)


def _stream(twin: Any, settings: SegmentationSettings) -> Any:
    """Return the model streamed strip by strip, with the same variables."""
    return tfbig.stream(
        twin, machine.budget(settings), devices=settings.devices, plain_if_small=False
    )


def plan_of(models: Models, image: tuple[int, ...] | sources.Source, training: bool = True) -> Any:
    """Return the plan of a step.

    Args:
        models: Compiled models.
        image: Shape of a batch, or an image.
        training: Whether to plan a training step, else a validation step.
    """
    model, twin = models
    if model is twin:
        shape = (1, *image.shape) if isinstance(image, sources.Source) else image
        model = tfbig.stream(twin, tfbig.Budget("1TB", "1TB"), strip_rows=shape[1])
        model.compile(loss=LOSS)
        return model.plan(shape, training)
    return model.plan(image, training)


def _epochs(settings: SegmentationSettings, slides: SlideSplits) -> tuple[Epochs, Epochs]:
    """Return the crops to train on, drawn again in every epoch, and the slides for validation."""
    dense, whole = machine.is_plain(settings), [slide.padded() for slide in slides.val]
    count, size = _items(settings, slides), _size(settings)
    brightness = slides_and_masks.BRIGHTNESS if settings.augment == "brightness" else 0

    @lru_cache(maxsize=2)  # a dataset does not hold its crops
    def drawn(epoch: int) -> list[LabelledSlide]:
        return slides_and_masks.draw(slides.train, size, count, [settings.seed, epoch], brightness)

    def batches(shard: Shard) -> Any:
        items = shard.items(count, settings.batch_size)
        chosen = [drawn(shard.epoch)[i] for i in items]
        return slides_and_masks.dataset(chosen, settings.batch_size, dense)

    def validation(shard: Shard) -> Any:
        return slides_and_masks.dataset([whole[i] for i in shard.items(len(whole), 1)], 1, dense)

    names = [f"{s.name} {s.image.shape} {Path(s.labels.name).name}" for s in slides.train]
    return (
        Epochs(_steps(settings, slides), batches, names),
        Epochs(len(whole), validation),
    )
