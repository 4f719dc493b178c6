"""Images and labels for `--task images`: tables, class folders, slides."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tfbig import SourceError, sources
from tfbig.cli.data import class_folders, cohort, run_data, scales, splitting, target_columns
from tfbig.cli.data.background import Masking
from tfbig.cli.data.run_data import Data, Opened
from tfbig.cli.data.target_columns import Labelled
from tfbig.cli.paths import FlagError
from tfbig.cli.settings import data_kinds
from tfbig.cli.settings.tasks import ImageSettings
from tfbig.data import epochs
from tfbig.data.worker_shards import ALL_BATCHES, Shard
from tfbig.sources.table import SPLITS, Row
from tfbig.system import callbacks

IMAGE = "image"
"""Column that names an image."""


@dataclass(frozen=True)
class ImageSet:
    """Images of a split.

    Attributes:
        ITEMS: What the items are, in the plural.
        images: Images that can be opened.
        labels: Class of each image, int64 `[n]`, or other labels `[n, ...]`.
        failed: `(name, reason)` of the others.
    """

    ITEMS: ClassVar[str] = "images"

    images: tuple[Any, ...]
    labels: npt.NDArray[Any]
    failed: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, found: Opened) -> ImageSet:
        """Return images with the labels of their rows."""
        return cls(found.items, np.array(found.labels), found.failed)


def load(settings: ImageSettings) -> Data:
    """Open the data that `--images` names."""
    if settings.data is None:
        raise FlagError(
            "--task images needs --data: a table of slides, a folder of images for each class, or a folder with "
            "images.csv. To try it on drawn images: python -m tfbig.recipes.write_ultramnist FOLDER, and --data FOLDER."
        )
    if settings.encoder == "series" and (settings.augment or settings.stain_jitter):
        name = "--augment" if settings.augment else "--stain-jitter"
        raise FlagError(f"{name} is for images, not for --encoder series. Remove it.")
    found: Data = data_kinds.KINDS["images"][settings.images].open(settings)
    return found


def image_shape(data: Data, any_size: bool = False) -> tuple[int | None, ...]:
    """The shape `(*extents, C)` of all images; None where they differ, or with `any_size` for all but C."""
    shapes = {i.shape for split in SPLITS for i in getattr(data, split).images}
    first = next(iter(shapes))
    if any_size:
        return (*[None] * (len(first) - 1), first[-1])
    return tuple(n if all(s[a] == n for s in shapes) else None for a, n in enumerate(first))


def dataset(
    part: ImageSet,
    settings: ImageSettings,
    learns: bool = False,
    shard: Shard = ALL_BATCHES,
    dense: bool = False,
) -> tf.data.Dataset:
    """The batches of an epoch; each iteration gives the next epoch.

    With `learns`, images are shuffled and augmented, differently in every epoch. `shard` has the batches of this
    worker, and the epoch to start with. Dense batches hold tensors instead of handles.
    """
    data = epochs.dataset(
        partial(
            _item,
            part,
            learns and settings.augment == "slide",
            settings.stain_jitter if learns else 0.0,
        ),
        len(part.images),
        settings.batch_size,
        (
            tf.TensorSpec([], tf.string),
            tf.TensorSpec(part.labels.shape[1:], part.labels.dtype),
        ),
        seed=settings.seed,
        shuffle=learns,
        sizes=[float(np.prod(i.shape)) for i in part.images] if settings.like_sizes else None,
        shard=shard,
    )
    if dense:
        data = data.map(partial(_opened, part.images[0], settings.batch_size > 1))
    data = data.batch(settings.batch_size)
    return data.prefetch(1) if dense else data


def _item(
    part: ImageSet, augments: bool, jitter: float, number: int, drawn: Any
) -> tuple[Any, Any]:
    """The handle and the label of an image, which is changed by a random number if asked for."""
    image, label = part.images[number], part.labels[number]
    if augments or jitter:
        return image.changed_handle(drawn, augments, jitter), label
    return image.handle, label


def _opened(first: Any, same_size: bool, handle: Any, label: Any) -> tuple[Any, Any]:
    """Open an image as a tensor, with its label; extents are known if all have the size of the first."""
    extents = [extent if same_size else None for extent in first.shape[:-1]]
    return _read(handle, [*extents, first.shape[-1]], first.dtype), label


def _read(handle: Any, shape: Sequence[int | None], dtype: Any) -> Any:
    def read(name: bytes) -> Any:
        image = sources.resolve(name.decode())
        return image.read(0, image.shape[0])

    return tf.ensure_shape(callbacks.numpy_function(read, [handle], tf.as_dtype(dtype)), shape)


def of_folder(settings: ImageSettings) -> Data:
    """Read `images.csv`: columns `image` (a path in the folder), those of the target, and `split` or `patient`."""
    found = target_columns.read(Path(settings.data or "") / "images.csv", IMAGE, settings)
    sets, table = _open_images(found, settings)
    return replace(found.data(sets), table=table)


def of_slides(settings: ImageSettings) -> Data:
    """Open whole slides at one resolution; slides that cannot be read are skipped."""
    slides = cohort.read(settings)
    opener, masking = cohort.Opener(settings, slides.table.rows), Masking.of(settings)

    if masking is not None:
        masking.check_own(row["path"] for row in slides.table.rows if row["path"])

    def image(path: Path) -> Any:
        whole: sources.Source = opener.image(path)
        if masking is not None:
            with closing(opener.slide(path)) as slide:
                whole = masking.apply(slide, whole)
        return _scaled(sources.RGB(whole), settings)

    return opener.with_pixels(cohort.load(settings, slides, image, ImageSet.of))


def of_pictures(settings: ImageSettings) -> Data:
    """Read images in a folder for each class."""
    folder = Path(settings.data or "")
    images, names = class_folders.read(folder, settings.seed, settings.class_names)
    table = splitting.with_splits(images, settings, IMAGE)
    found = Labelled(table, target_columns.of(settings), names)
    sets, saved = _open_images(found, settings)
    return Data.of(sets, names, table=saved)


def _open_images(
    found: Labelled, settings: ImageSettings
) -> tuple[list[ImageSet], tuple[dict[str, Any], ...]]:
    """Open the images of each split that can be used, in RGB; the others are listed with the reason.

    The table of the run has them with the sizes of their pixels; lines about odd ones are printed.
    """
    read: dict[str, scales.Scale] = {}

    def open_row(row: Row) -> Any:
        if settings.encoder == "series":
            return _series(row["path"])
        image = sources.OnDisk(row["path"], settings.level)
        read[image.name] = scales.scale_of(None, image.mpp)
        return _scaled(sources.RGB(image), settings)

    opened = run_data.open_all(found.table, open_row, settings, "path", "images")
    scales.say(read, settings.test_only, scales.IMAGES)
    named = found.table.with_rows(row | {IMAGE: str(row["path"])} for row in found.table.rows)
    saved = replace(found, table=named).saved(IMAGE, bool(settings.test_only))
    saved = scales.with_pixels(saved, read, lambda row: row[IMAGE])
    return run_data.with_labels(opened, ImageSet.of), saved


def _series(path: Path) -> sources.Bag:
    """Open a series: samples as instances.

    Raises:
        SourceError: The file is damaged, or holds something else.
    """
    series = sources.open_bag(path)
    if len(series.shape) != 2 or series.dtype != np.float32:
        raise SourceError(
            f"{path}: has shape {series.shape} and dtype {series.dtype}; expected a series [samples, channels] of "
            "float32 for --encoder series. Save it with numpy.save."
        )
    return series


def _scaled(image: Any, settings: ImageSettings) -> Any:
    if not settings.side or image.shape[:2] == (settings.side, settings.side):
        return image
    if settings.keep_aspect:
        return sources.CenterCropped(image, settings.side)
    return sources.Scaled(image, (settings.side, settings.side))
