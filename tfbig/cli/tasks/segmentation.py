"""Train the gigapixel U-Net to tell an object, such as tissue, from background on whole slides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras

import tfbig
from tfbig.choices import UNET_STRIDE
from tfbig.cli import machine, paths
from tfbig.cli.data import background, dense_items, slide_splits, slides_and_masks
from tfbig.cli.data.run_data import Data
from tfbig.cli.data.slides_and_masks import LabelledSlide
from tfbig.cli.settings.choices import WHOLE
from tfbig.cli.settings.tasks import SegmentationSettings
from tfbig.cli.settings.value_types import crop_size
from tfbig.cli.tasks import segmentation_results
from tfbig.cli.tasks.dense_task import DenseTask, Judged
from tfbig.cli.tasks.task import Curve, Models, Plans
from tfbig.metrics import Dice
from tfbig.metrics.confusion import OVERLAPS
from tfbig.models.gigapixel_unet import gigapixel_unet
from tfbig.training import Epochs
from tfbig.units import counted

LOSS = "binary_crossentropy"
VOLUMES = ("dataset.json", "volumes.csv")
"""Files that mark a data set of volumes."""
EXAMPLE_DATA = Path(__file__).parents[3] / "examples" / "data"


class Segmentation(DenseTask[SegmentationSettings]):
    """Training and evaluation with `--task segmentation`."""

    pictures = None
    means = OVERLAPS

    def resolved(self, settings: SegmentationSettings) -> SegmentationSettings:
        """Fill in the slides of the checkout, if there are no others.

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

    def opened(self, settings: SegmentationSettings) -> Data:
        """Open the slides, and print what they are."""
        slides = slide_splits.load(settings)
        every = slides.every
        if not settings.test_only:
            _check_training(settings, slides)
        dense_items.print_splits(settings, slides)
        computed = [slide.name for slide in every if slide.means is not None]
        if len(computed) < len(every) and not settings.test_only:
            line = f"labels: {counted(len(every) - len(computed), 'mask')}"
            print(f"{line}; computed tissue of {', '.join(computed)}" if computed else line)
        if settings.background == "skip":
            print(background.describe((s.name, s.image) for s in every), flush=True)
        return slides

    def classes(self, settings: SegmentationSettings, data: Data) -> Sequence[str]:
        """The names of the classes."""
        return settings.class_names

    def network(self, settings: SegmentationSettings, data: Data) -> keras.Model:
        """Build a new gigapixel U-Net."""
        return gigapixel_unet()

    def streamed(self, settings: SegmentationSettings, twin: keras.Model) -> Any:
        """Stream the network, also where crops are small, so that memory is that of whole slides."""
        budget = machine.budget(settings)
        return tfbig.stream(twin, budget, devices=settings.devices, plain_if_small=False)

    def loss(self, settings: SegmentationSettings) -> str:
        """The name of the loss."""
        return LOSS

    def metrics(self, settings: SegmentationSettings, data: Data) -> list[keras.metrics.Metric]:
        """Dice of the object."""
        return [Dice()]

    def crop(self, settings: SegmentationSettings) -> tuple[int, int] | None:
        """The rows and columns of a crop, or None for whole slides."""
        return _size(settings)

    def training(self, settings: SegmentationSettings, data: Data) -> Epochs:
        """Epochs of crops at random places, of random brightness."""
        size, count = _size(settings), self.count(settings, data)
        brightness = slides_and_masks.BRIGHTNESS if settings.augment == "brightness" else 0

        def draw(seed: Sequence[int]) -> Sequence[LabelledSlide]:
            return slides_and_masks.draw(data.train.items, size, count, seed, brightness)

        return self.epochs_of(settings, data, draw)

    def padded(
        self, settings: SegmentationSettings, data: Data, item: LabelledSlide
    ) -> LabelledSlide:
        """Pad a whole slide with background below and to the right."""
        return item.padded()

    def identity(self, item: LabelledSlide) -> str:
        """The text by which a resumed run recognises a slide and its mask."""
        return f"{super().identity(item)} {Path(item.labels.name).name}"

    def plans(self, models: Models, settings: SegmentationSettings, data: Data) -> Plans | None:
        """The plans of a step; plain Keras is a plan of one strip, to compare with."""
        if settings.test_only or models.model is not models.twin:
            return super().plans(models, settings, data)
        rows = max(slide.padded().image.shape[0] for slide in (*data.train.items, *data.val.items))
        model = tfbig.stream(models.twin, tfbig.Budget("1TB", "1TB"), strip_rows=rows)
        model.compile(loss=LOSS)
        return self.plans_of(model, settings, data)

    def curve(self, settings: SegmentationSettings) -> Curve:
        """Return what the learning curve shows."""
        return Curve({"loss": "binary cross-entropy", "dice": "Dice"}, "validation slides")

    def judge(
        self,
        models: Models,
        settings: SegmentationSettings,
        data: Data,
        item: LabelledSlide,
        folder: Path,
        draws: bool,
    ) -> Judged:
        """Predict a slide, draw it, and return the overlap with its labels."""
        skips = settings.background == "skip"
        return Judged(
            segmentation_results.evaluate_slide(models, item, folder, settings.class_names, skips)
        )

    def results(
        self, settings: SegmentationSettings, judged: Sequence[Judged], folder: Path
    ) -> dict[str, float]:
        """Average overlaps, with their deviations, and the share of the slides that is computed."""
        shares = segmentation_results.mean_shares([each.row for each in judged])
        return super().results(settings, judged, folder) | shares

    def advice(self, settings: SegmentationSettings, results: Mapping[str, float]) -> str:
        """Say what to do if a trained network has found nothing."""
        return segmentation_results.advice(results, settings)


def _check_training(settings: SegmentationSettings, slides: Data) -> None:
    """Check that the crops fit, and that whole slides can be batched.

    Raises:
        FlagError: They do not, or cannot.
    """
    size = _size(settings)
    if size is None:
        whole = [slide.padded() for slide in slides.train.items]
        dense_items.check_batch(whole, settings.batch_size, "slides")
    else:
        sizes = ((slide.name, slide.image.shape) for slide in slides.train.items)
        dense_items.check_crop(sizes, size, UNET_STRIDE, " or whole")


def _size(settings: SegmentationSettings) -> tuple[int, int] | None:
    """The rows and columns of a crop, or None for whole slides."""
    return None if settings.crop == WHOLE else crop_size(settings.crop)
