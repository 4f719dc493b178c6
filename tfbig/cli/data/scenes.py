"""Scenes and labels of `--task scenes`, of a table; crops of them, whole or at random places."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tfbig import SourceError, sources
from tfbig.cli import scene_blocks
from tfbig.cli.data import dense_items, run_data, splits, splitting
from tfbig.cli.data.run_data import Data, Opened
from tfbig.cli.paths import FlagError
from tfbig.cli.settings.scene_settings import SceneSettings
from tfbig.sources.names import title_of
from tfbig.sources.scenes import vectors
from tfbig.sources.scenes.labels import (
    VECTORS,
    Labels,
    LabelSource,
    RasterLabels,
    VectorLabels,
    class_names,
    columns_of,
    read_outlines,
)
from tfbig.sources.scenes.measured import FilledScene, sampled_moments
from tfbig.sources.scenes.raster import RasterSource
from tfbig.sources.table import Row, Table
from tfbig.units import counted

FILES = ("scene", "label")
"""Columns of the table that name files."""
BACKGROUND = "background"
"""Class of pixels outside all outlines."""
OUTLINED = "label"
"""Class of outlines without a column of classes."""
TRIES = 16
"""Most places that are drawn for a crop until one has a label."""
_SAMPLE = 256


@dataclass(frozen=True)
class LabelledScene:
    """A scene with its labels, or a crop of both.

    Attributes:
        name: Name of the file without suffix.
        image: `[H, W, bands]`, float32.
        labels: `[H, W, 1]`, float32.
        weights: `[H, W, 1]`, float32: 1 where the label counts.
        filled: The whole scene.
        classes: Class numbers that the labels of the whole scene have; none of values.
        no_label: Value of the label that stands for none, or None.
    """

    name: str
    image: sources.Source
    labels: sources.Source
    weights: sources.Source
    filled: FilledScene
    classes: frozenset[int] = frozenset()
    no_label: float | None = None

    def crop(self, rows: tuple[int, int], columns: tuple[int, int]) -> LabelledScene:
        """Crop the same rectangle of image, labels and weights; nothing is read."""
        image, labels, weights = (
            each.crop(rows, columns) for each in (self.image, self.labels, self.weights)
        )
        return LabelledScene(self.name, image, labels, weights, self.filled)


class _Found(NamedTuple):
    """A scene that is open, and the path of its label."""

    scene: RasterSource
    label: Path


def load(settings: SceneSettings) -> Data:
    """Open the scenes of `--data` by split, and print what they are; in an evaluation those for testing alone.

    Raises:
        SourceError: The table is wrong, or a split has no scene that can be used.
        FlagError: There is no table, or flags do not fit the scenes.
    """
    if settings.data is None:
        raise FlagError("--data TABLE is missing: a table *.csv with columns scene and label.")
    table = _with_splits(Table.read(settings.data, FILES), settings)
    table = table.with_rows(
        row | {"files": [table.file(row[name]) for name in FILES]} for row in table.rows
    )
    rows = run_data.parts(table, bool(settings.test_only), "scenes")
    found = {split: Opened.of(each, _open_scene, FILES[0]) for split, each in rows.items()}
    run_data.usable(found, "scenes")
    if settings.confine:
        table.check_inside(_files(each for part in found.values() for each in part.items))
    settings, found = _decided_bands(settings, found)
    settings = _decided_classes(settings, found)
    opened = {split: part.then(partial(_labelled, settings)) for split, part in found.items()}
    data = Data.of(run_data.usable(opened, "scenes"))
    settings = _decided_values(settings, data.train.items)
    names = ("mean", "std", "class_names", "value_scale")
    decided = {name: getattr(settings, name) for name in names}
    columns = (*FILES, "split")
    saved = (
        {name: row[name] for name in columns}
        for row in run_data.rows_of_run(table, bool(settings.test_only))
    )
    data = replace(data, table=tuple(saved), decided=decided)
    _print_scenes(settings, data)
    _print_columns(settings, data)
    return data


def draw(
    scenes: Sequence[LabelledScene], size: tuple[int, int] | None, count: int, seed: Sequence[int]
) -> list[LabelledScene]:
    """Draw crops at random places, of scenes in proportion to their area; or whole scenes in random order.

    `size` is `(rows, columns)` of a crop; None for whole scenes. The same seeds draw the same crops.

    A crop without any label is drawn again, up to 16 times. One that cannot be read is returned.
    """
    rng = np.random.default_rng(seed)
    if size is None:
        return [scenes[i] for i in rng.permutation(len(scenes))]
    areas = np.array([np.prod(s.filled.scene.shape[:2]) for s in scenes], float)
    chosen = rng.choice(len(scenes), count, p=areas / areas.sum())
    return [_drawn(scenes[i], size, rng) for i in chosen]


def crop_of(settings: SceneSettings) -> tuple[int, int] | None:
    """The rows and columns of a crop, or None for whole scenes."""
    if settings.crop == "whole":
        return None
    rows, columns = (int(side) for side in settings.crop.split("x"))
    return rows, columns


def check_crop(settings: SceneSettings, scenes: Sequence[LabelledScene]) -> None:
    """Check that crops fit the network and the scenes.

    Raises:
        FlagError: They do not.
    """
    size, multiple = crop_of(settings), 2**settings.depth
    if size is None:
        dense_items.check_batch(scenes, settings.batch_size, "scenes")
        return
    if any(side % multiple for side in size):
        raise FlagError(
            f"--crop {settings.crop}: with --depth {settings.depth} both must be multiples of {multiple}. Use another "
            "crop, or another depth."
        )
    sizes = ((scene.name, scene.filled.scene.shape) for scene in scenes)
    dense_items.check_crop(sizes, size, multiple, " or whole")


def _with_splits(table: Table, settings: SceneSettings) -> Table:
    """Return the table with a split; where it is drawn, rows of one scene are in one.

    With a column `split`, a scene may be in several, with labels of different parts of it.
    """
    if "split" in table.columns:
        return splitting.with_splits(table, settings, files=None)
    if len(table.rows) < 3 and not settings.test_only:
        raise SourceError(
            f"{table.path}: has {counted(len(table.rows), 'scene')} and no column split; expected at least 3 scenes, "
            "or a column with train and val. A scene may be in both, with labels of different parts of it."
        )
    drawn = table.with_rows(row | {"stratum": 0, "case_id": row["scene"]} for row in table.rows)
    table = splitting.with_splits(drawn, settings, files=None)
    present = {row["split"] for row in table.rows}
    if present == {"train", "test"}:  # few scenes: one for validation, none to test on
        next(row for row in reversed(table.rows) if row["split"] == "test")["split"] = "val"
    return table


def _open_scene(row: Row) -> _Found:
    """Open the scene of a row, and find the path of its label."""
    for name, path in zip(FILES, row["files"], strict=True):
        if not path.is_file():
            raise SourceError(f"{row.place}: no such {name} {row[name]}. Correct the path.")
    scene, label = row["files"]
    return _Found(RasterSource(scene), label)


def _files(found: Iterable[_Found]) -> Iterator[str | Path]:
    """Yield the files of scenes and their labels, and all that these lead to."""
    for scene, label in found:
        yield from scene.files
        yield label
        with contextlib.suppress(SourceError):  # reported when the scene is opened with its labels
            if label.suffix.lower() in VECTORS:
                yield from vectors.files(label)
            else:
                yield from RasterSource(label).files


def _decided_bands(
    settings: SceneSettings, found: Mapping[str, Opened]
) -> tuple[SceneSettings, dict[str, Opened]]:
    """Return the settings with the mean and deviation of each band, and the scenes without damaged training scenes."""
    training = found.get("train", Opened())
    scenes, damaged = [each.scene for each in training.items], dict[RasterSource, SourceError]()
    bands = len(settings.mean) if settings.mean else scenes[0].shape[2]
    if settings.scale is not None:
        if (settings.mean or settings.std) and not settings.test_only:
            raise FlagError("--scale: stands for --mean and --std. Leave it out, or these.")
        return replace(settings, mean=(0.0,) * bands, std=(settings.scale,) * bands), {**found}
    mean, std = settings.mean, settings.std
    if mean is None or std is None:
        moments = np.zeros(bands), np.ones(bands)
        if same := [scene for scene in scenes if scene.shape[2] == bands]:
            moments = sampled_moments(same, unreadable=damaged.setdefault)
        mean = mean or tuple(float(f"{m:.7g}") for m in moments[0])
        std = std or tuple(float(f"{d:.7g}") for d in moments[1])
    if len(mean) != len(std):
        raise FlagError(
            f"--std: {len(std)} numbers, but {counted(len(mean), 'band')}. Use one for each band."
        )

    def readable(each: _Found) -> _Found:
        if each.scene in damaged:
            raise damaged[each.scene]
        return each

    changed = {"train": training.then(readable)} if damaged else {}
    return replace(settings, mean=mean, std=std), {**found, **changed}


def _decided_classes(settings: SceneSettings, found: Mapping[str, Opened]) -> SceneSettings:
    """Fill in the names of the classes: of the flag, or of all training and validation labels."""
    if settings.target != "class" or settings.class_names:
        return settings
    numbers, names, outlined = -1, set[str](), False
    opened = [pair for each in found.values() for pair in zip(each.items, each.rows, strict=True)]
    for (scene, path), row in opened:
        if row["split"] == "test":
            continue
        try:
            if path.suffix.lower() not in VECTORS:
                numbers = max(numbers, *RasterLabels(path, scene).values(), -1)
                continue
            names |= _classes_of(path, settings.label_column)
            outlined = True
        except SourceError:  # which is reported when the scene is opened with its labels
            continue
    if outlined and numbers >= 0:
        raise FlagError(
            "--class-names is missing: some labels are rasters with numbers, others outlines with names. Name the "
            "classes in the order of their numbers, background first."
        )
    if outlined:
        return replace(settings, class_names=(BACKGROUND, *_in_order(names)))
    if numbers > 65534:
        raise SourceError(f"the labels go up to {numbers}; expected class numbers up to 65534.")
    return replace(settings, class_names=tuple(map(str, range(max(numbers + 1, 2)))))


def _classes_of(path: Path, column: str | None) -> set[str]:
    """Read the names of the classes in a file of outlines."""
    table = read_outlines(path, column=column)
    return {OUTLINED} if column is None else {*class_names(path, column, table[column])}


def _in_order(names: set[str]) -> list[str]:
    """Sort names, numbers by their value."""
    return sorted(
        names, key=lambda name: (not name.isdigit(), int(name) if name.isdigit() else 0, name)
    )


def _labelled(settings: SceneSettings, found: _Found) -> LabelledScene:
    """Open a scene with its labels.

    Raises:
        SourceError: It has another number of bands, or the labels do not fit.
    """
    assert settings.mean is not None
    scene, label = found
    scene_blocks.check_bands(scene, len(settings.mean), "this run")
    fill = scene_blocks.fill_of(settings.mean, scene)
    skips = settings.background == "skip" and crop_of(settings) is None
    image = FilledScene(scene, fill, 2**settings.depth, skips)
    labels, classes = _open_labels(scene, label, settings)
    return LabelledScene(
        title_of(scene.name),
        image,
        LabelSource(image, labels),
        LabelSource(image, labels, weights=True),
        image,
        frozenset(classes),
        labels.source.bands.nodata[0] if isinstance(labels, RasterLabels) else None,
    )


def _open_labels(
    scene: RasterSource, label: Path, settings: SceneSettings
) -> tuple[Labels, set[int]]:
    """Open the labels of a scene, and find the class numbers that they have; classes must have a name."""
    if label.suffix.lower() in VECTORS:
        if settings.target == "regression":
            if settings.label_column is None:
                raise SourceError(
                    f"{label}: outlines of values need --label-column, the column of the values. Add it."
                )
            return VectorLabels(label, scene, settings.label_column), set()
        names = settings.class_names or ()
        numbers = {name: number for number, name in enumerate(names)}
        if settings.label_column is None:
            numbers = {OUTLINED: 1}
        outlines = VectorLabels(label, scene, settings.label_column, numbers)
        return outlines, {0, *map(int, outlines.burned)}  # outside of them is background
    labels, found = RasterLabels(label, scene), set[int]()
    if settings.target == "class":
        found, count = labels.values(), len(settings.class_names or ())
        if found and max(found) >= count:
            raise SourceError(
                f"{label}: has the class number {max(found)}, but there are {count} classes, from 0. Add its name to "
                "--class-names, or correct the labels."
            )
    return labels, found


def _decided_values(settings: SceneSettings, scenes: Sequence[LabelledScene]) -> SceneSettings:
    """Fill in the mean and deviation of the values of the training labels."""
    if settings.target != "regression" or settings.value_scale or settings.test_only:
        return settings
    values = np.concatenate([_sampled_values(scene) for scene in scenes])
    if not len(values):
        raise SourceError(
            "no sampled pixel of the training scenes has a value; expected labels that are not all nodata. Check the "
            "nodata of the labels, or use --value-scale."
        )
    deviation = float(values.std()) or 1.0
    mean, deviation = (float(f"{number:.7g}") for number in (values.mean(), deviation))
    return replace(settings, value_scale=(mean, deviation))


def _sampled_values(scene: LabelledScene) -> Any:
    """Read the values of windows spread evenly over a scene, where they are known."""
    found = []
    height, width = scene.filled.scene.shape[:2]
    for top in np.unique(np.linspace(0, max(height - _SAMPLE, 0), 8).astype(int)):
        for left in np.unique(np.linspace(0, max(width - _SAMPLE, 0), 8).astype(int)):
            window = (
                (int(top), min(int(top) + _SAMPLE, height)),
                (int(left), min(int(left) + _SAMPLE, width)),
            )
            try:
                known = scene.weights.read_window(*window) > 0
                found.append(scene.labels.read_window(*window)[known].astype(np.float64))
            except SourceError:  # reported when a crop with it is trained on
                continue
    return np.concatenate(found) if found else np.zeros(0)


def _drawn(scene: LabelledScene, size: tuple[int, int], rng: np.random.Generator) -> LabelledScene:
    """Draw a crop at a random place that has a label, if one of the first places has."""
    shape = scene.filled.scene.shape
    for _ in range(TRIES):
        top, left = (int(rng.integers(n - m + 1)) for n, m in zip(shape, size, strict=False))
        part = scene.crop((top, top + size[0]), (left, left + size[1]))
        try:
            if part.weights.read(0, size[0]).any():
                break
        except SourceError:  # reported when the crop is trained on
            break
    return part


def _print_scenes(settings: SceneSettings, data: Data) -> None:
    """Print what is trained, validated and tested on, and which coordinate systems there are."""
    print(f"mode {settings.mode}, precision {settings.precision}, seed {settings.seed}")
    parts = {split: part.items for split, part in data.sets.items()}
    for split, scenes in parts.items():
        if scenes:
            names = ", ".join(dict.fromkeys(scene.name for scene in scenes[:10]))
            print(f"{split}: {counted(len(scenes), 'scene')}, {names}")
    grids = list(dict.fromkeys(scene.filled.scene.grid.describe() for scene in data.every))
    more = (
        "; networks see pixels, not metres, so pixels should have one size"
        if len(grids) > 1
        else ""
    )
    print(f"grids: {'; '.join(grids)}{more}")
    if settings.target == "class":
        classes = settings.class_names or ()
        print(
            f"classes: {', '.join(classes[:20])}{' ...' if len(classes) > 20 else ''}", flush=True
        )
        for split, scenes in parts.items():
            _warn_of_missing(split, scenes, classes)


def _warn_of_missing(split: str, scenes: Sequence[LabelledScene], classes: Sequence[str]) -> None:
    """Print which classes no label of a split has, and whether they are its value for no label."""
    found = frozenset[int]().union(*(scene.classes for scene in scenes))
    missing = [number for number in range(len(classes)) if number not in found] if scenes else []
    unset = sum(scene.no_label in missing for scene in scenes)
    reason = (
        f"; its number is the nodata of {counted(unset, 'label')}, and pixels of nodata do not count. If it is a "
        "class, remove the nodata, as by gdal_edit.py -unsetnodata"
        if unset
        else ""
    )
    splits.warn_of_missing(split, "scenes", [classes[number] for number in missing], reason)


def _print_columns(settings: SceneSettings, data: Data) -> None:
    """Print which columns outlines have, if none of them was chosen."""
    if settings.target != "class" or settings.label_column is not None or settings.test_only:
        return
    columns = dict[str, None]()
    labels = (row["files"][1] for part in data.sets.values() for row in part.rows)
    for path in dict.fromkeys(labels):
        if path.suffix.lower() in VECTORS:
            columns |= dict.fromkeys(columns_of(path))
    if columns:
        names = ", ".join([*columns][:20])
        print(
            f"outlines have the columns {names}; without --label-column all are one class",
            flush=True,
        )
