"""Prediction of a scene block by block into a cloud-optimised GeoTIFF, without seams, from where it was interrupted."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from tfbig import SourceError, sources
from tfbig.cli.identity import of_file
from tfbig.results.scene_pictures import class_colours
from tfbig.sources.scenes.cog import BlockWriter, Format, Rectangle
from tfbig.sources.scenes.measured import FilledScene
from tfbig.sources.scenes.raster import RasterSource
from tfbig.streaming import regions
from tfbig.system import signals
from tfbig.units import counted

Pixels = npt.NDArray[Any]


@dataclass(frozen=True)
class SceneOutputs:
    """Meaning of the channels of a network: scores of classes, or values.

    Attributes:
        classes: Names of the classes; empty for values.
        channels: Channels of the network.
        threshold: Probability above which a pixel is of class 1, for networks with one channel.
        probabilities: Whether to write the probability of each class too.
    """

    classes: tuple[str, ...]
    channels: int
    threshold: float = 0.5
    probabilities: bool = False

    @property
    def nodata(self) -> float:
        """Value of pixels without a measurement: the greatest of the dtype, or NaN."""
        return float(np.iinfo(self.dtype).max) if self.classes else np.nan

    @property
    def dtype(self) -> np.dtype[Any]:
        """Smallest dtype that holds the classes and nodata."""
        if not self.classes:
            return np.dtype(np.float32)
        return np.dtype(np.uint8 if len(self.classes) < 256 else np.uint16)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the bands."""
        if not self.classes:
            return (
                tuple(f"value {n}" for n in range(self.channels))
                if self.channels > 1
                else ("value",)
            )
        first = ("class",)
        return (*first, *self.classes[-self.channels :]) if self.probabilities else first

    def convert(self, outputs: Pixels) -> Pixels:
        """The bands of a strip, `[r, W, bands]`: classes and, on request, probabilities in percent; or values.

        `outputs` are `[r, W, channels]` of the network.
        """
        if not self.classes:
            return outputs.astype(np.float32)
        classes = outputs > self.threshold if self.channels == 1 else outputs.argmax(2)[..., None]
        if not self.probabilities:
            return classes.astype(self.dtype)
        percent = np.rint(np.clip(outputs, 0, 1) * 100)
        return np.concatenate([classes, percent], axis=2).astype(self.dtype)


class Predicted(NamedTuple):
    """Result of the prediction of a scene.

    Attributes:
        counts: Pixels of each class; empty for values.
        nodata: Pixels without a measurement.
        computed: Share of the pixels of the scene that was computed, of the blocks of this process; None if none was
            left to compute.
    """

    counts: npt.NDArray[np.int64]
    nodata: int
    computed: float | None


def predict(
    model: Any,
    image: FilledScene,
    path: Path,
    outputs: SceneOutputs,
    identity: Mapping[str, Any],
    skip: bool = False,
) -> Predicted:
    """Predict a scene into a GeoTIFF; blocks that an interrupted process has written are kept.

    `image` is the scene, padded to a multiple of the step of the model. `identity` is what the prediction depends
    on, besides the scene and the outputs. With `skip`, areas without measurement are not computed.

    A block is predicted from the pixels that it depends on, no fewer, so that its pixels are those of a prediction of
    the whole scene. A network that depends on statistics of the whole scene is run on it at once.

    Raises:
        SourceError: The scene cannot be read, or the file cannot be written.
    """
    scene = image.scene
    shape = scene.shape[0], scene.shape[1], len(outputs.names)
    form = Format(
        shape,
        outputs.dtype,
        scene.grid,
        outputs.nodata,
        outputs.names,
        labels=bool(outputs.classes),
        classes=outputs.classes,
        colours=class_colours(outputs.classes),
    )
    writer = BlockWriter(path, form, {**identity, **of_file(scene.name)})
    blocks, waiting = writer.blocks, writer.missing
    is_local = regions.region(model, image.shape[:2], *blocks[0]) is not None
    shares: list[float] = []
    scratch = writer.folder  # removed in the end, even if this process is killed
    whole = None
    if waiting and not is_local:
        whole = model.predict_to(image, str(scratch / "whole.npy"), outputs.convert)
    for block in tqdm(waiting, path.name, unit="block", leave=False, disable=not _shows()):
        signals.check()
        valid = image.valid(*block)
        if whole is not None:
            pixels, share = whole.read_window(*block), 1.0
        else:
            pixels, share = _block(model, image, block, valid, outputs, skip, scratch)
        writer.write(block, np.where(valid[..., None], pixels, _nodata(outputs)))
        shares.append(share * valid.size)
    area = sum((b[0][1] - b[0][0]) * (b[1][1] - b[1][0]) for b in waiting)
    counts, missing = _counted(writer, outputs)
    writer.finish()
    return Predicted(counts, missing, sum(shares) / area if area else None)


def _shows() -> bool:
    """Tell whether progress is shown."""
    return sys.stderr.isatty()


def _block(
    model: Any,
    image: FilledScene,
    block: Rectangle,
    valid: npt.NDArray[np.bool_],
    outputs: SceneOutputs,
    skip: bool,
    scratch: Path,
) -> tuple[Pixels, float]:
    """The pixels of a block, and the share of it that was computed: none where nothing is measured."""
    if not valid.any():
        return np.empty((*valid.shape, len(outputs.names)), outputs.dtype), 0.0
    region = regions.region(model, image.shape[:2], *block)
    assert region is not None  # the first block has one, and so have all
    rows, columns = region
    part: sources.Source = image.crop(rows, columns)
    share = 1.0
    if skip:
        found = image.foreground(rows, columns)
        if not found.foreground.all():
            part = sources.Masked(part, found, image.fill)
            share = model.plan(part, training=False).active
    predicted = model.predict_to(part, str(scratch / "block.npy"), outputs.convert)
    (top, bottom), (left, right) = block
    inside = (top - rows[0], bottom - rows[0]), (left - columns[0], right - columns[0])
    return predicted.read_window(*inside), share


def _nodata(outputs: SceneOutputs) -> Pixels:
    return np.array(outputs.nodata, outputs.dtype)


def _counted(writer: BlockWriter, outputs: SceneOutputs) -> tuple[npt.NDArray[np.int64], int]:
    """Count the pixels of each class, and those without a measurement, of all blocks."""
    counts, missing = np.zeros(len(outputs.classes), np.int64), 0
    if outputs.classes:
        for block in writer.blocks:
            pixels = writer.read(block)[..., 0].ravel()
            counts += np.bincount(pixels, minlength=int(outputs.nodata) + 1)[: len(counts)]
            missing += int((pixels == outputs.nodata).sum())
    return counts, missing


def check_bands(scene: RasterSource, bands: int, where: str) -> None:
    """Check that a scene has as many bands as a network reads; `where` names the network.

    Raises:
        SourceError: It has another number.
    """
    if scene.shape[2] != bands:
        rows, columns, count = scene.shape
        if scene.bands.has_alpha and count + 1 == bands:
            raise SourceError(
                f"{scene.name}: has {counted(count, 'band')} and an alpha band, which is a mask, but {where} reads "
                f"{bands}. If alpha is a band such as near infrared, declare it: rio edit-info --colorinterp "
                f"{bands}=undefined FILE."
            )
        names = ", ".join(name for name in scene.bands.names if name)
        raise SourceError(
            f"{scene.name}: has {counted(count, 'band')}{f' ({names})' if names else ''} of {rows} x {columns} pixels, "
            f"but {where} reads {bands}. Use a scene with the bands of the training, in their order; "
            "tfbig.sources.stack_bands joins files of single bands."
        )


def fill_of(mean: Sequence[float] | None, scene: RasterSource) -> tuple[float, ...]:
    """The value of each band where there is no measurement: its mean in the training, as the dtype holds it, or 0."""
    if mean is None:
        return (0.0,) * scene.shape[2]
    return tuple(float(np.rint(m) if scene.dtype.kind in "ui" else m) for m in mean)
