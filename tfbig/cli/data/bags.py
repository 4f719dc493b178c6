"""Bags for `--task mil`: a folder with `bags.csv`, slides as tiles or features."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tfbig import SourceError, mil
from tfbig.cli import messages
from tfbig.cli.data import (
    cohort,
    encoder_tiles,
    run_data,
    slide_folders,
    target_columns,
    tile_coords,
)
from tfbig.cli.data.run_data import UNREADABLE, Data, Opened
from tfbig.cli.data.scales import SAME
from tfbig.cli.data.tile_selection import MIN_TISSUE, MPP, TILE, Selection
from tfbig.cli.paths import FlagError
from tfbig.cli.settings import data_kinds
from tfbig.cli.settings.choices import PUBLISHED
from tfbig.cli.settings.tasks import MILSettings
from tfbig.sources import Bag, Coords, Filled, open_bag, read_coords
from tfbig.sources.resolution import one_size
from tfbig.sources.table import SPLITS, Row


def load(settings: MILSettings) -> Data:
    """Open the data that `--bags` names."""
    if settings.data is None:
        raise FlagError(
            "--task mil needs --data: a table of slides, a folder of slides for each class, or a folder with bags.csv. "
            "To try it on drawn bags: python -m tfbig.recipes.write_drawn_bags FOLDER, and --data FOLDER."
        )
    data: Data = data_kinds.KINDS["bags"][settings.bags].open(settings)
    if settings.encoder_input == PUBLISHED:
        data = data.mapped(lambda part: _each(part, _as_published(settings.encoder))).checked()
    if (share := settings.min_grey) is not None:
        data = data.mapped(lambda part: _each(part, partial(mil.foreground, share=share))).checked()
    if settings.fill and not settings.test_only and settings.sample and settings.sample >= 1:
        data = replace(data, train=_filled(data.train, int(settings.sample)))
    return data


def without_small_bags(data: Data, smallest: int) -> Data:
    """Keep the bags of `smallest` instances or more, which can be split into pseudo-bags; list others as failed.

    Raises:
        SourceError: All bags of a split are smaller.
    """

    def checked(part: mil.BagSet) -> mil.BagSet:
        fits = [bag.shape[0] >= smallest for bag in part.bags]
        reason = f"cannot be split into {smallest} pseudo-bags; lower --pseudo-bags to use it."
        too_small = [
            (bag.name, f"{bag.name}: has {bag.shape[0]} instances, which {reason}")
            for bag, fit in zip(part.bags, fits, strict=True)
            if not fit
        ]
        kept = tuple(bag for bag, fit in zip(part.bags, fits, strict=True) if fit)
        return mil.BagSet(kept, part.labels[fits], (*part.failed, *too_small))

    return data.mapped(checked).checked()


def _as_published(encoder: str) -> Callable[[Bag], Bag]:
    """Return what resizes and cuts the tiles of a bag as the encoder expects them."""
    return lambda tiles: encoder_tiles.prepared(tiles, encoder)


def _each(part: mil.BagSet, change: Callable[[Bag], Bag]) -> mil.BagSet:
    """Change each bag, without the bags for which that is an error, such as those of background alone."""
    bags, kept, failed = [], np.zeros(len(part.bags), bool), list(part.failed)
    for place, bag in enumerate(part.bags):
        try:
            bags.append(change(bag))
            kept[place] = True
        except SourceError as error:
            failed.append((bag.name, messages.in_flags(error)))
    return mil.BagSet(tuple(bags), part.labels[kept], tuple(failed))


def _filled(part: mil.BagSet, count: int) -> mil.BagSet:
    bags = tuple(Filled(bag, max(count, bag.shape[0])) for bag in part.bags)
    return replace(part, bags=bags)


def of_folder(settings: MILSettings) -> Data:
    """Read `bags.csv` of a folder: columns `bag` (a path in it), those of the target, and `split` or `patient`."""
    found = target_columns.read(Path(settings.data or "") / "bags.csv", "bag", settings)

    opened = run_data.open_all(
        found.table, lambda row: open_bag(row["path"]), settings, "path", "bags"
    )
    return found.data(run_data.with_labels(opened, partial(_bag_set, found.count)))


def _bag_set(count: int | None, found: Opened) -> mil.BagSet:
    """Gather the bags of a split with their labels, which are the numbers of `count` classes, or others."""
    read = mil.read_bags(found.items, found.labels, count)
    return replace(read, failed=(*found.failed, *read.failed))


def of_slides(settings: MILSettings) -> Data:
    """Read tiles of slides; slides that cannot be read or hold no tissue are skipped."""
    slides = cohort.read(settings)
    coords = _read_coords(settings, slides.table.rows) if settings.coords else {}
    asked = _resolution(settings)
    decided = _tiles_of(settings, coords)
    settings = replace(settings, **decided)
    opener = cohort.Opener(settings, slides.table.rows)

    def tiles(path: Path) -> Any:
        if settings.coords is None:
            share = settings.min_tissue or 0.0
            selection = Selection(decided["tile"], settings.tissue, share, settings.edge)
            return opener.tiles(path, selection)
        file = tile_coords.file_of(settings.coords, path)
        return opener.tiles(path, coords.get(file) or tile_coords.read(file))

    gather = partial(_bag_set, slides.count)
    data = opener.with_pixels(cohort.load(settings, slides, tiles, gather))
    if settings.coords:
        _check_pixels(data, settings.coords, coords, asked)
        decided |= _measured(settings, data, asked)
    return replace(data, decided=decided, origin_of=opener.origin_of)


def of_features(settings: MILSettings) -> Data:
    """Read features of slides; files that cannot be read, or have another width than the first, are skipped."""
    slides = cohort.read(settings)
    first: list[Bag] = []

    def features(path: Path) -> Bag:
        bag = open_bag(path)
        _check_features(bag, first[0] if first else None, settings.feature_width)
        first.append(bag)
        return bag

    data = cohort.load(settings, slides, features, partial(_bag_set, slides.count), "--features")
    return replace(data, decided={"feature_width": first[0].shape[1]})


def _check_features(bag: Bag, first: Bag | None, width: int | None) -> None:
    """Check that a bag has features, `width` of a tile, or else as many as the first.

    Raises:
        SourceError: It has not.
    """
    if len(bag.shape) != 2:
        raise SourceError(
            f"{bag.name}: has shape {bag.shape}; expected features [n, d] of n tiles. Check --features."
        )
    if width not in (None, bag.shape[1]):
        raise SourceError(
            f"{bag.name}: has {bag.shape[1]} features of a tile; expected {width} (--feature-width), as in training. "
            "Use features of the same encoder."
        )
    if first and (bag.shape[1], bag.dtype) != (first.shape[1], first.dtype):
        raise SourceError(
            f"{bag.name}: has {bag.shape[1]} features of a tile in {bag.dtype}; expected {first.shape[1]} in "
            f"{first.dtype}, as in {first.name}. Use features of one encoder."
        )


def _check_pixels(
    data: Data, folder: str, coords: Mapping[Path, Coords], asked: Mapping[str, Any]
) -> None:
    """Check the pixels of bags whose tiles are of files.

    Raises:
        SourceError: They are not those that are asked for.
    """
    for bag in (bag for split in SPLITS for bag in getattr(data, split).bags):
        file = tile_coords.file_of(folder, bag.name)
        side = coords[file].size_at_level_0
        tile_coords.check_pixels(file, bag.name, bag.mpp, asked, side)


def _read_coords(settings: MILSettings, rows: Sequence[Row]) -> dict[Path, Coords]:
    """Read the tiles of each file of `--coords`, without files that are missing or damaged.

    Raises:
        SourceError: A flag contradicts what a file was made with, or files differ in it.
    """
    coords, folder = {}, settings.coords or ""
    files = {row["path"]: tile_coords.file_of(folder, row["path"]) for row in rows if row["path"]}
    slide_folders.check_own(files, "file of tiles")
    for file in files.values():
        with suppress(*UNREADABLE):  # named when the slide is opened
            coords[file] = read_coords(file)
    resolution, size = _resolution(settings), settings.tile
    for file, tiles in coords.items():
        tile_coords.check(file, tiles, resolution, size)
        resolution, size = resolution or tile_coords.resolution_of(tiles), tiles.size
    return coords


def _tiles_of(settings: MILSettings, coords: Mapping[Path, Coords]) -> dict[str, Any]:
    """The settings of tiles that no flag gives: of the files of `--coords`, or the defaults of `tfbig tile`.

    They are saved with the run, so that predictions use the same.
    """
    size, mpp, share = TILE, MPP, MIN_TISSUE
    if settings.encoder_input == PUBLISHED:
        size, mpp = encoder_tiles.default_tiles(settings.encoder, size, mpp)
    size, resolution = settings.tile or size, {"mpp": mpp}
    if coords:
        first = next(iter(coords.values()))
        size, resolution = first.size, tile_coords.resolution_of(first)
        share = first.made_with.get("min_tissue", MIN_TISSUE)
    chosen = {} if _resolution(settings) else resolution
    if settings.min_tissue is None:
        chosen["min_tissue"] = share
    return {"tile": size, **chosen}


def _measured(
    settings: MILSettings, data: Data, asked: Mapping[str, Any]
) -> dict[str, float | None]:
    """Measure the micrometres per pixel of the tiles of files, where neither a flag nor the files say them.

    A magnification in a file of another program is relative to the objective of its slide, so 20x may be 0.468 um: the
    run saves what the tiles are, and predictions of other slides use it.

    Raises:
        SourceError: Pixels are not square.
    """
    sizes = {bag.name: bag.mpp for bag in data.train.bags if getattr(bag, "mpp", None)}
    said = _resolution(settings)
    if asked or "level" in said or not sizes:
        return {}
    known = {name: one_size(mpp) for name, mpp in sizes.items()}
    for name, size in known.items():
        if size is None:
            rows, columns = sizes[name]
            raise SourceError(
                f"{name}: its tiles have pixels of {rows:.4g} x {columns:.4g} um (rows x columns); expected one size, "
                "so that other slides can be read at it. Use --level 0 and tiles of it, or leave the slide out."
            )
    numbers = sorted(size for size in known.values() if size is not None)
    nominal = tile_coords.nominal_mpp(said)
    if nominal is not None and all(math.isclose(n, nominal, rel_tol=SAME - 1) for n in numbers):
        return {}
    return {"mpp": round(numbers[len(numbers) // 2], 6), "magnification": None}


def _resolution(settings: MILSettings) -> dict[str, Any]:
    """The resolution that is asked for, such as `{"mpp": 0.5}`, or an empty dict."""
    values = {key: getattr(settings, key) for key in tile_coords.RESOLUTIONS}
    return {key: value for key, value in values.items() if value is not None}
