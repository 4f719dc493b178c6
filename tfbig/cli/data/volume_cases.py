"""Volumes of `--task volume-segmentation` with their labels, by split, and crops of them, read when they are needed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tfbig import sources
from tfbig.cli import paths
from tfbig.cli.data import nnunet, prepared_volumes, run_data, splitting
from tfbig.cli.data.prepared_volumes import KnownLabels, Preparation
from tfbig.cli.data.run_data import Data
from tfbig.cli.settings.choices import STORED
from tfbig.cli.settings.volume_segmentation_settings import VolumeSegmentationSettings
from tfbig.errors import SourceError
from tfbig.sources import Volume
from tfbig.sources.names import title_of
from tfbig.sources.table import Row, Table
from tfbig.sources.volumes.opening import files_of
from tfbig.sources.volumes.views import PaddedVolume, check_same_grid
from tfbig.system import output_folder
from tfbig.units import counted

TABLE: Final = "volumes.csv"
CHANNELS: Final = ("image", "image_*")
"""Columns of the files of an image."""
REMEMBERED: Final = 1000
"""Voxels of each class of a volume at which crops may be centred."""


@dataclass(frozen=True)
class LabelledVolume:
    """A volume with labels, or a crop of both, as the network reads them.

    Attributes:
        name: Name of the case.
        image: `[D, H, W, C]`, float32.
        labels: `[D, H, W, 1]`, float32: 0, 1, ...
        stored: The image as stored.
        stored_labels: The labels on the grid of the file.
    """

    name: str
    image: Volume
    labels: Volume
    stored: Volume
    stored_labels: Volume

    @cached_property
    def places(self) -> tuple[npt.NDArray[np.int64], ...]:
        """Some voxels of each class of the foreground that occurs, `[n, 3]`, the same in each run.

        The labels are read once for them, plane by plane.
        """
        rng = np.random.default_rng(0)
        kept: dict[int, tuple[npt.NDArray[Any], npt.NDArray[Any]]] = {}
        for plane in range(self.labels.shape[0]):
            labels = self.labels.read(plane, plane + 1)[0, ..., 0]
            for label in np.unique(labels[labels > 0]).astype(int).tolist():
                found = np.argwhere(labels == label)
                found = np.concatenate([np.full((len(found), 1), plane), found], axis=1)
                keys = rng.random(len(found))
                if label in kept:
                    found = np.concatenate([kept[label][0], found])
                    keys = np.concatenate([kept[label][1], keys])
                chosen = np.argsort(keys)[:REMEMBERED]
                kept[label] = found[chosen], keys[chosen]
        return tuple(kept[label][0] for label in sorted(kept))


def load(settings: VolumeSegmentationSettings) -> Data:
    """Return the volumes of `--data` by split; in an evaluation those for testing alone.

    The orientation is that of the first training volume, if no flag sets it. In training and for the results, volumes
    are read as `prepared_volumes.of_config` says for the settings with what the data decide.

    Args:
        settings: Settings of the run.

    Raises:
        FlagError: There is no `--data`, no names of the classes, or flags are wrong.
        SourceError: The data set is wrong, or a split has no volume that can be used.
    """
    if settings.data is None:
        raise paths.FlagError(
            f"--data FOLDER is missing: a data set of nnU-Net with {nnunet.FILE}, or a folder with a table {TABLE}."
        )
    window = settings.intensity_window
    if window is not None and not window[0] < window[1]:
        raise paths.FlagError(
            f"--intensity-window {window[0]:g} {window[1]:g}: the first number must be below the second."
        )
    table, classes = _table(Path(settings.data), settings)
    if settings.confine:
        volumes = (path for row in table.rows for path in (*row["images"], row["labels"]))
        table.check_inside(file for volume in volumes for file in files_of(volume))
    table = table.with_rows(row | {"stratum": 0, "case_id": row["name"]} for row in table.rows)
    table = splitting.with_splits(table, settings, files="images")
    orientation = settings.orientation or _orientation(table.rows) or STORED
    decided = {"class_names": classes, "orientation": orientation}
    open_row = _opener(prepared_volumes.of_config(vars(settings) | decided), len(classes))
    sets = run_data.open_all(table, open_row, settings, "name", "volumes")
    rows = run_data.rows_of_run(table, bool(settings.test_only))
    return Data.of(sets, classes, table=tuple(map(_saved, rows)), decided=decided)


def _table(folder: Path, settings: VolumeSegmentationSettings) -> tuple[Table, tuple[str, ...]]:
    """Read `name`, `images`, `labels` and perhaps `split` of each volume, and the names of the classes."""
    if (folder / TABLE).exists():
        if settings.class_names is None:
            raise paths.FlagError(
                f"--class-names is missing: the names of the labels 0, 1, ... of {folder / TABLE}, background first."
            )
        return _with_files(Table.read(folder / TABLE, ("label",), [CHANNELS])), settings.class_names
    found = nnunet.read(folder)
    for line in found.missing:
        print(f"missing: {line}")
    classes = settings.class_names or found.classes
    if len(classes) < len(found.classes):
        raise paths.FlagError(
            f"--class-names: {len(classes)} names; expected {len(found.classes)}, as in {folder / nnunet.FILE}."
        )
    rows = (
        Row({"name": case.name, "images": case.images, "labels": case.labels}, case.name)
        for case in found.cases
    )
    return Table.of(folder / TABLE, rows), classes


def _with_files(table: Table) -> Table:
    """Find the `name`, the `images` and the `labels` of each volume of a table."""
    placed = []
    for row in table.rows:
        images = tuple(table.file(row[name]) for name in table.like(*CHANNELS) if row[name])
        if not images:
            raise SourceError(f"{row.place}: has no image. Add one, or remove the line.")
        name = row.get("case_id") or title_of(images[0])
        output_folder.check_name(name, f"{row.place}: case_id")
        placed.append(row | {"name": name, "images": images, "labels": table.file(row["label"])})
    return table.with_rows(placed)


def _orientation(rows: Sequence[Row]) -> str | None:
    """Find the orientation of the first training volume that can be opened; if none can, of any."""
    for row in sorted(rows, key=lambda row: row["split"] != "train"):
        try:
            return prepared_volumes.stacked(row["images"], row["name"]).orientation
        except (
            SourceError,
            OSError,
        ):  # which is reported when the volume is opened with its labels
            continue
    return None


def _opener(preparation: Preparation, classes: int) -> Callable[[Row], LabelledVolume]:
    """Return the function that opens a row, and checks that it has as many channels as the first."""
    first: list[LabelledVolume] = []

    def open_row(row: Row) -> LabelledVolume:
        _check_files(row)
        volume = open_case(row["name"], row["images"], row["labels"], preparation, classes)
        first.append(volume)
        _check_channels(volume, first[0].image.shape[3])
        return volume

    return open_row


def _check_files(row: Row) -> None:
    """Raise SourceError if a file of a row does not exist."""
    for path in (*row["images"], row["labels"]):
        if not path.exists():
            raise SourceError(
                f"{row.place}: no such file {path}. Correct the path, or remove the line."
            )


def _check_channels(volume: LabelledVolume, channels: int) -> None:
    """Raise SourceError if a volume has another number of channels."""
    if volume.image.shape[3] != channels:
        raise SourceError(
            f"{volume.name}: holds {counted(volume.image.shape[3], 'channel')}, others {channels}; expected as many in "
            "each. Take one time of a series, or remove the case."
        )


def open_case(
    name: str, images: Sequence[Path], labels: Path, preparation: Preparation, classes: int
) -> LabelledVolume:
    """Open a volume, from the files of its channels, and its labels; only headers are read.

    Raises:
        SourceError: A file cannot be opened, or the labels are on another grid.
    """
    stored = prepared_volumes.stacked(images, name)
    label_file = sources.VolumeOnDisk(labels)
    check_same_grid(label_file, stored, "the image")
    if label_file.grid.affine is None:
        label_file.grid = stored.grid
    return LabelledVolume(
        name,
        preparation.image(stored),
        preparation.labels(label_file, classes),
        stored,
        KnownLabels(label_file, classes),
    )


def _saved(row: Row) -> dict[str, Any]:
    """A row as a run saves it, with absolute paths."""
    images = [str(Path(path).resolve()) for path in row["images"]]
    named = (
        {"image": images[0]}
        if len(images) == 1
        else {f"image_{n}": p for n, p in enumerate(images)}
    )
    labels = str(Path(row["labels"]).resolve())
    return {"case_id": row["name"], "split": row["split"], **named, "label": labels}


def draw(
    volumes: Sequence[LabelledVolume],
    size: tuple[int, int, int] | None,
    count: int,
    seed: Sequence[int],
    preparation: Preparation,
    foreground: float = 0.0,
    mirror: bool = False,
) -> list[LabelledVolume]:
    """Draw crops at random places, from each volume in turn, or whole volumes in random order.

    `size` is planes, rows and columns of a crop; None for whole volumes, padded. `count` is the number of crops of
    all volumes; the same seeds draw the same crops. `foreground` is the share of crops centred at a voxel of the
    foreground, of each class as often. With `mirror`, each axis is reversed in half of the cases.
    """
    rng = np.random.default_rng(seed)
    order = np.arange(count) if size else rng.permutation(count)
    drawn = []
    for number in order:
        volume = volumes[int(number) % len(volumes)]
        volume = (
            whole(volume, preparation)
            if size is None
            else _crop(volume, size, preparation, foreground, rng)
        )
        flips = [bool(flip) for flip in rng.integers(0, 2, 3)] if mirror else [False] * 3
        drawn.append(
            _mapped(volume, lambda v, flips=flips: sources.Turned(v, (0, 1, 2), flips))
            if any(flips)
            else volume
        )
    return drawn


def whole(volume: LabelledVolume, preparation: Preparation) -> LabelledVolume:
    """Pad a whole volume to multiples of the stride of the network."""
    image = preparation.padded(volume.image, preparation.fill)
    return replace(volume, image=image, labels=preparation.padded(volume.labels))


def _crop(
    volume: LabelledVolume,
    size: tuple[int, int, int],
    preparation: Preparation,
    foreground: float,
    rng: np.random.Generator,
) -> LabelledVolume:
    """Crop a volume at a random place; volumes that are smaller are padded."""
    centred = rng.random() < foreground
    padded = replace(
        volume,
        image=PaddedVolume(volume.image, (1, 1, 1), preparation.fill, size),
        labels=PaddedVolume(volume.labels, (1, 1, 1), 0, size),
    )
    extents = padded.image.shape[:3]
    firsts = [
        int(rng.integers(whole - part + 1)) for whole, part in zip(extents, size, strict=True)
    ]
    if centred and volume.places:
        places = volume.places[int(rng.integers(len(volume.places)))]
        place = places[int(rng.integers(len(places)))]
        firsts = [
            int(np.clip(at - part // 2, 0, whole - part))
            for at, part, whole in zip(place, size, extents, strict=True)
        ]
    box = [(first, first + part) for first, part in zip(firsts, size, strict=True)]
    return _mapped(padded, lambda v: v.crop(*box))


def _mapped(volume: LabelledVolume, change: Any) -> LabelledVolume:
    """Apply a change to image and labels."""
    return replace(volume, image=change(volume.image), labels=change(volume.labels))
