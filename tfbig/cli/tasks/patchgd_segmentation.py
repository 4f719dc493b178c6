"""Train PatchGD for masks: an encoder fills a latent grid, a decoder the mask, in the memory of a few patches."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import keras
import numpy as np

import tfbig
from tfbig import SourceError, sources
from tfbig.cli import load_model
from tfbig.cli.data import masked_images
from tfbig.cli.data.masked_images import MaskedImage
from tfbig.cli.data.run_data import Data, Opened
from tfbig.cli.paths import FlagError
from tfbig.cli.settings import patch_settings
from tfbig.cli.settings.patchgd_segmentation_settings import PatchGDSegmentationSettings
from tfbig.cli.tasks import encoder_weights, segmentation_results
from tfbig.cli.tasks.dense_task import DenseTask, Judged
from tfbig.cli.tasks.task import Curve, Models
from tfbig.metrics.confusion import OVERLAPS
from tfbig.models import encoders
from tfbig.models.patch_decoder import patch_decoder
from tfbig.patchgd import PatchGDSegmentation
from tfbig.results import figures, slide_viewer
from tfbig.sources import Source
from tfbig.system.output_folder import file_in
from tfbig.training import Epochs

COMPARED = ("background", "correct", "false", "missed")


class PatchGDSegmentationTask(DenseTask[PatchGDSegmentationSettings]):
    """Training and evaluation with `--task patchgd-segmentation`."""

    means = OVERLAPS

    def resolved(self, settings: PatchGDSegmentationSettings) -> PatchGDSegmentationSettings:
        """Fill in the scale of pixels, after checking that the settings fit each other.

        Raises:
            SourceError: They do not.
        """
        if settings.loss == "dice" and settings.skip_mask_filling:
            raise FlagError(
                "--loss dice: is a loss of the whole mask, which --skip-mask-filling leaves out. Remove one of them."
            )
        patch_settings.check_steps(settings)
        return encoder_weights.with_scale(settings)

    def opened(self, settings: PatchGDSegmentationSettings) -> Data:
        """Open the images, and print what they are."""
        data = masked_images.load(settings)
        print(f"mode {settings.mode}, encoder {settings.encoder}, precision {settings.precision}")
        masked_images.print_counts(data)
        return data

    def classes(self, settings: PatchGDSegmentationSettings, data: Data) -> Sequence[str]:
        """The names of the classes."""
        return data.classes

    def network(self, settings: PatchGDSegmentationSettings, data: Data) -> PatchGDSegmentation:
        """Build a new model, initialised by `--backbone`."""
        model = make_model(settings)
        if settings.backbone and not settings.test_only:
            start_from(model, Path(settings.backbone))
        return model

    def streamed(self, settings: PatchGDSegmentationSettings, twin: keras.Model) -> keras.Model:
        """The network itself, which reads images by patches."""
        return twin

    def loss(self, settings: PatchGDSegmentationSettings) -> Any:
        """The loss that `--loss` names."""
        return {"binary_cross_entropy": "binary_crossentropy", "dice": keras.losses.Dice()}[
            settings.loss
        ]

    def metrics(
        self, settings: PatchGDSegmentationSettings, data: Data
    ) -> list[keras.metrics.Metric]:
        """Dice of the object."""
        return [tfbig.metrics.Dice()]

    def crop(self, settings: PatchGDSegmentationSettings) -> None:
        """None: images are whole."""
        return

    def training(self, settings: PatchGDSegmentationSettings, data: Data) -> Epochs:
        """Epochs of whole images in random order."""
        return self._epochs(settings, data.train, learns=True)

    def validation(self, settings: PatchGDSegmentationSettings, data: Data) -> Epochs:
        """Epochs of whole images."""
        return self._epochs(settings, data.val, learns=False)

    def _epochs(self, settings: PatchGDSegmentationSettings, part: Opened, learns: bool) -> Epochs:
        batches = partial(masked_images.dataset, part, settings, learns)
        names = [self.identity(each) for each in part.items]
        return Epochs(masked_images.steps(part, settings), batches, names)

    def curve(self, settings: PatchGDSegmentationSettings) -> Curve:
        """Return what the learning curve shows."""
        return Curve({"loss": "loss", "dice": "Dice"}, "validation images")

    def judge(
        self,
        models: Models,
        settings: PatchGDSegmentationSettings,
        data: Data,
        item: MaskedImage,
        folder: Path,
        draws: bool,
    ) -> Judged:
        """Predict an image, draw it, and return the overlap with its mask."""
        name = f"mask_{data.judged.items.index(item)}" if draws else None
        return Judged(_evaluated(models.model, settings, item, folder, name))


def make_model(settings: PatchGDSegmentationSettings) -> PatchGDSegmentation:
    """Build a model: a network without pooling, and a decoder that doubles its map until it is a patch.

    Raises:
        SourceError: `--patch` does not fit the network.
    """
    patch = settings.patch
    options: dict[str, Any] = {
        "mean": settings.mean,
        "std": settings.std,
        "latent": settings.latent,
    }
    encoder = encoders.make(settings.encoder, (patch, patch, 3), **options, pooled=False)
    encoder_weights.load(encoder, settings)
    cells = encoder.output_shape[1]
    doublings = (patch // cells).bit_length() - 1 if cells else 0
    if not cells or cells << doublings != patch:
        raise FlagError(
            f"--patch {patch}: --encoder {settings.encoder} makes a map of {cells} x {cells} codes of it; expected the "
            "patch halved some times without remainder. Use a multiple of 64."
        )
    window = (1 + 2 * settings.context) * cells
    decoder = patch_decoder((window, window, settings.latent), doublings, settings.decoder_width)
    accumulate = settings.inner_accumulate
    return PatchGDSegmentation(
        encoder,
        decoder,
        patch,
        settings.sampling,
        settings.inner_steps,
        accumulate if isinstance(accumulate, int) else None,
        context=settings.context,
        scale=settings.encoder_scale,
        filling_norm=settings.filling_norm,
        fill_mask=not settings.skip_mask_filling,
        patches_at_once=settings.patches_at_once,
        seed=settings.seed,
    )


def start_from(model: PatchGDSegmentation, run: Path) -> None:
    """Copy the encoder and the decoder of another run, such as one on smaller images (appendix E).

    Raises:
        SourceError: It is no run of this task, or its networks have other sizes.
    """
    trained = load_model.load(run / "model.keras")
    if not isinstance(trained, PatchGDSegmentation):
        raise SourceError(
            f"--backbone {run}: is no run of --task patchgd-segmentation. Train one, such as with --downscale 4."
        )
    for part in ("encoder", "decoder"):
        try:
            getattr(model, part).set_weights(getattr(trained, part).get_weights())
        except ValueError as error:
            raise SourceError(
                f"--backbone {run}: its {part} has other sizes ({error}). Use the same --encoder, --latent and "
                "--decoder-width."
            ) from error


def _evaluated(
    model: PatchGDSegmentation,
    settings: PatchGDSegmentationSettings,
    image: MaskedImage,
    folder: Path,
    name: str | None,
) -> dict[str, Any]:
    """Predict an image, draw it as files of a name if there is one, and return a row with its overlap with the mask."""
    rows, columns = image.image.shape[:2]
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        padded = image.padded(settings.patch).image
        whole = model.predict_to(padded, f"{scratch}/mask.npy")
        prediction = whole.crop((0, rows), (0, columns))
        row = {
            "image": image.name,
            **segmentation_results.overlaps(image.labels, prediction),
        }
        if name:
            result = "nothing" if row["dice"] is None else f"Dice {row['dice']:.4f}"
            draw(folder, name, image, prediction, f"{image.name}: {result}")
    return row


def draw(folder: Path, name: str, image: MaskedImage, prediction: Source, title: str) -> None:
    """Draw the prediction and the mask of an image, as a picture and for the zoomable view of the report.

    `prediction` is the probability of the object, `[H, W, 1]`; `name` is that of the files.
    """
    gray = sources.Grayscale(image.image, invert=True)
    figures.overlay(file_in(folder, f"{name}.png"), gray, image.labels, prediction, title)
    pixels, labels, probabilities = (
        figures.thumbnail(source, slide_viewer.MAX_SIDE)
        for source in (image.image, image.labels, prediction)
    )
    found, labelled = probabilities[..., 0] > 0.5, labels[..., 0] > 0
    compared = found * np.where(labelled, 1, 2) + 3 * (labelled & ~found)
    overlays = [slide_viewer.class_overlay("prediction and mask", compared, COMPARED)]
    slide_viewer.write_view(folder, name, pixels, overlays, title=title)
