"""Images with masks for `--task patchgd-segmentation`: of a table, or of a folder with `masks`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import tensorflow as tf

from tfbig import sources
from tfbig.cli.data import run_data, scales, slide_folders, splitting
from tfbig.cli.data.run_data import Data, Opened
from tfbig.cli.data.slides_and_masks import MaskSource
from tfbig.cli.paths import FlagError
from tfbig.cli.settings.instance_settings import InstanceSettings
from tfbig.cli.settings.patchgd_segmentation_settings import PatchGDSegmentationSettings
from tfbig.data import epochs
from tfbig.data.worker_shards import ALL_BATCHES, Shard
from tfbig.errors import SourceError
from tfbig.sources.table import Row, Table
from tfbig.units import ceil_div, counted

MaskedSettings: TypeAlias = PatchGDSegmentationSettings | InstanceSettings
"""Settings of a task on images with masks."""
TABLE = "images.csv"
CLASSES = ("background", "object")


@dataclass(frozen=True)
class MaskedImage:
    """An image and its mask.

    Attributes:
        name: Path of the file, relative to the folder of the data.
        image: `[H, W, 3]`, uint8.
        labels: `[H, W, 1]`, uint8: 1 is the object.
    """

    name: str
    image: sources.Source
    labels: sources.Source

    def padded(self, multiple: int) -> MaskedImage:
        """Add black background below and to the right, up to a multiple of the rows and columns of a patch."""
        return MaskedImage(
            self.name, sources.Padded(self.image, multiple), sources.Padded(self.labels, multiple)
        )


def load(settings: MaskedSettings, open_row: Callable[[Row, Any], Any] | None = None) -> Data:
    """Open the images of `--data` by split; in an evaluation those for testing alone.

    `open_row` opens an image and its mask, by default a `MaskedImage`, from a row with the paths of both as
    `files`, and the settings.

    Raises:
        SourceError: There is no folder, the table is wrong, or a split has no image that can be used.
    """
    if settings.data is None:
        raise FlagError("--data FOLDER is missing: the folder of the images and their masks.")
    table = splitting.with_splits(_table(Path(settings.data)), settings, "image", "files")
    if settings.confine:
        table.check_inside(file for row in table.rows for file in row["files"])
    opener: Callable[[Row, Any], Any] = open_row or _open
    sets = run_data.open_all(table, lambda row: opener(row, settings), settings, "image", "images")
    names = [name for name in ("image", "mask", "split", "patient") if name in table.rows[0]]
    rows = () if settings.test_only else table.rows
    saved = [{name: row[name] for name in names} for row in rows]
    data = Data.of(sets, CLASSES)
    read = {each.name: scales.scale_of(None, each.image.mpp) for each in data.every}
    scales.say(read, settings.test_only, scales.IMAGES)
    return replace(data, table=scales.with_pixels(saved, read, lambda row: row["image"]))


def print_counts(data: Data) -> None:
    """Print the number of images of every split, and their sizes."""
    for split, part in data.sets.items():
        if sizes := sorted({image.image.shape[:2] for image in part.items}):
            words = " to ".join(dict.fromkeys(f"{n} x {m}" for n, m in (sizes[0], sizes[-1])))
            print(f"{split}: {counted(len(part.items), 'image')} of {words}")


def steps(part: Opened, settings: PatchGDSegmentationSettings) -> int:
    """Count the batches of all images; the last may be smaller."""
    return ceil_div(len(part.items), settings.batch_size)


def dataset(
    part: Opened,
    settings: PatchGDSegmentationSettings,
    learns: bool = False,
    shard: Shard = ALL_BATCHES,
) -> tf.data.Dataset:
    """The batches of an epoch, handles of padded images and of their masks.

    The images must exist as long as the dataset. With `learns`, they are shuffled, differently in every epoch.
    `shard` has the batches of this worker, and the epoch to start with.
    """
    padded = [image.padded(settings.patch) for image in part.items]
    sizes = [float(image.image.shape[0] * image.image.shape[1]) for image in padded]
    handle = tf.TensorSpec([], tf.string)
    return epochs.dataset(
        partial(_item, padded),
        len(padded),
        settings.batch_size,
        (handle, handle),
        seed=settings.seed,
        shuffle=learns,
        sizes=sizes if settings.like_sizes else None,
        shard=shard,
    ).batch(settings.batch_size)


def _item(padded: Sequence[MaskedImage], number: int, drawn: Any) -> tuple[str, str]:
    """The handles of an image and its mask."""
    return padded[number].image.handle, padded[number].labels.handle


def _table(folder: Path) -> Table:
    """Read the table of a folder, with the paths of image and mask as `files`."""
    if not (folder / TABLE).exists():
        return Table.of(folder / TABLE, _rows_of_folder(folder))
    table = Table.read(folder / TABLE, ("image", "mask"))
    return table.with_rows(
        row | {"files": (table.file(row["image"]), table.file(row["mask"]))} for row in table.rows
    )


def _rows_of_folder(folder: Path) -> list[dict[str, Any]]:
    """List the images of a folder that have a mask; those without one are counted."""
    files = slide_folders.without_masks(slide_folders.files_in(folder, sources.SLIDE_SUFFIXES))
    masks = slide_folders.masks_of(files, sources.SLIDE_SUFFIXES)
    if not masks:
        raise SourceError(
            f"{folder}: has neither {TABLE} nor images NAME.* with masks/NAME.* or NAME_mask.* beside them. Check "
            "--data."
        )
    if without := [file.name for file in files if file not in masks]:
        print(f"{folder}: images without a mask are left out: {len(without)}, such as {without[0]}")
    slide_folders.say_unused_masks(files, {*masks.values()}, sources.SLIDE_SUFFIXES)
    return [
        {"image": file.name, "mask": str(mask.relative_to(folder)), "files": (file, mask)}
        for file, mask in masks.items()
    ]


def _open(row: Row, settings: PatchGDSegmentationSettings) -> MaskedImage:
    """Open an image and its mask, both `downscale` times smaller.

    Raises:
        SourceError: One cannot be opened, or they differ in size.
    """
    image_file, mask_file = row["files"]
    image = sources.RGB(sources.OnDisk(image_file))
    mask = sources.OnDisk(mask_file, reader=sources.LABELS)
    if mask.shape != (*image.shape[:2], 1):
        raise SourceError(
            f"{mask.name}: is {mask.shape[0]} x {mask.shape[1]} pixels of {counted(mask.shape[2], 'channel')}; "
            f"expected {image.shape[0]} x {image.shape[1]} of 1, the size of {image.name}. Save the mask at that size."
        )
    both: list[sources.Source] = [image, MaskSource(mask)]
    downscale = settings.downscale
    if downscale > 1:
        both = [smaller(source, downscale) for source in both]
    return MaskedImage(row["image"], *both)


def smaller(source: sources.Source, downscale: int) -> sources.Source:
    """Scale an image down by a factor; a pixel of a mask is 1 if half of it or more is."""
    rows, columns = (max(round(n / downscale), 1) for n in source.shape[:2])
    return sources.Scaled(source, (rows, columns))
