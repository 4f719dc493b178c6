"""Slides of a table, as bags of tiles or whole images, opened when they are read and split by case."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias, TypeGuard

import numpy as np

from tfbig import SourceError, sources
from tfbig.cli import paths
from tfbig.cli.data import (
    feature_folders,
    run_data,
    scales,
    side_tables,
    slide_folders,
    splitting,
    stain,
    target_columns,
)
from tfbig.cli.data.feature_folders import FeatureFiles
from tfbig.cli.data.run_data import Data, Opened, Origin
from tfbig.cli.data.scales import TABLE
from tfbig.cli.data.slide_folders import SlideFiles
from tfbig.cli.data.target_columns import Labelled, TargetColumns
from tfbig.cli.data.tile_selection import Selection
from tfbig.cli.settings.tasks import ImageSettings, MILSettings, SegmentationSettings
from tfbig.results import run_folder
from tfbig.sources import names
from tfbig.sources.names import Names, title_of
from tfbig.sources.resolution import Mpp, is_plausible
from tfbig.sources.table import Row, Table
from tfbig.units import counted

SLIDE = "slide_id"
"""Column that names a slide."""
CohortSettings: TypeAlias = MILSettings | ImageSettings
"""Settings of a run on slides of a table."""
TableSettings: TypeAlias = CohortSettings | SegmentationSettings
"""Settings of a run whose table of slides may have no labels."""
_MOST_NEAR = 20
"""Most missing files of which the one is looked for that is like them."""


def read(settings: CohortSettings) -> Labelled:
    """Read the slides of `--data`: a table, a folder with `slides.csv`, or a folder of slides for each class.

    A folder of features may have `features.csv` instead. Columns are `slide_id` and those of `--target`; optional are
    `case_id`, `split` and `path`. The `path` of a row is None if the file is missing.

    Raises:
        FlagError: There is no `--data`.
        SourceError: The table is missing, lacks a column, or none of its slides has a file.
    """
    if settings.data is None:
        raise paths.FlagError(
            "slides need --data FILE, a table with columns case_id, slide_id, label, such as tfbig dataset writes."
        )
    data, columns = Path(settings.data), target_columns.of(settings)
    file = _table(data, settings)
    if data.is_dir() and not file.exists():
        table = _table_of_classes(data, columns)
    else:
        table = Table.read(file, (SLIDE, *columns.names))
    found = columns.labelled(table, SLIDE)
    return replace(found, table=with_splits(with_paths(found.table, settings), settings))


def _table_of_classes(folder: Path, columns: TargetColumns) -> Table:
    """List the slides in a folder for each class; its name is the label.

    Raises:
        SourceError: There are fewer than two such folders, or something else than classes is predicted.
    """
    classes = slide_folders.classes_in(folder)
    if len(classes) < 2 or columns.names != ("label",):
        raise SourceError(
            f"{folder / TABLE}: no such file; expected a table with columns {SLIDE}, {', '.join(columns.names)}, or "
            "instead a folder of slides for each of two or more classes. Check --data."
        )
    print(f"classes are the folders {', '.join(classes)} in {folder}")
    rows = (
        Row({SLIDE: title_of(path), "label": name, "path": str(path.absolute())}, str(path))
        for name, slides in classes.items()
        for path in slides
    )
    return Table.of(folder / TABLE, rows)


def _table(data: Path, settings: CohortSettings) -> Path:
    """Find the table that `--data` names, or that is in the folder that it names."""
    if not data.is_dir():
        return data
    own = data / feature_folders.TABLE
    return own if _is_of_features(settings) and own.exists() else data / TABLE


def _is_of_features(settings: TableSettings) -> TypeGuard[MILSettings]:
    return isinstance(settings, MILSettings) and settings.bags == "features"


def is_table(path: str | Path) -> bool:
    """Tell whether a path among slides is that of a table of them."""
    return Path(path).suffix.lower() == ".csv"


def slides_of_table(path: Path, says: bool = True) -> Sequence[Row]:
    """Read a table with a column `slide_id`, and find the `path` of each slide, or where it was expected.

    Slides are found by an optional column `path`, or by name in the folder of the table. It is said which have no file,
    and which are matched as numbers, if asked for.

    Raises:
        SourceError: The table has no such column, or a slide has two lines or two files.
    """
    table = Table.read(path, (SLIDE,))
    files = SlideFiles(table.folder)
    placed = _placed(table, files, says=says)
    missing = [row[SLIDE] for row in placed if row["path"] is None]
    if says:
        side_tables.say_unmatched(path, missing, len(placed), _free(files, placed), "no file")
    return [row | {"path": row["path"] or table.folder / row[SLIDE]} for row in placed]


def with_paths(table: Table, settings: TableSettings) -> Table:
    """Find the `path` of each slide of a table; it is None if the file is missing.

    A row without a file has `near`, the file whose name is most like that of its slide, or None. How many files of
    `--slides` or `--features` have no row is said.

    Raises:
        SourceError: A slide has two lines or two files, a file is of two slides, none has a file, or with `--confine`
            one is elsewhere.
    """
    files: SlideFiles
    if _is_of_features(settings):  # with --features, paths of the table may be those of the slides
        given, reads_path = settings.features, not settings.features
        files = FeatureFiles(Path(given or table.folder))
    else:
        given, reads_path = settings.slides, True
        files = SlideFiles(Path(given or table.folder))
    placed = _placed(table, files, reads_path)
    if settings.confine:
        table.check_inside((row["path"] for row in placed if row["path"]), files.folder)
    missing = [row for row in placed if row["path"] is None]
    free = _free(files, placed)
    for row in missing[:_MOST_NEAR]:
        row["near"] = names.near(row[SLIDE], free)
    if len(missing) == len(placed):
        first = missing[0]
        raise SourceError(
            f"{files.folder}: holds none of the {len(placed)} slides of {table.path}; the first is {first[SLIDE]}"
            f"{side_tables.hint(first['near'])}. Check {files.FLAG}."
        )
    if given and not settings.test_only:
        _print_unlisted(files, table.with_rows(placed))
    return table.with_rows(placed)


def _print_unlisted(files: SlideFiles, table: Table) -> None:
    """Print how many files of a folder are of slides without a row in the table, and so are not used.

    Files that are named as the mask of a slide of the table, such as `SLIDE_mask.png`, do not count.
    """
    used = {title_of(row["path"]) for row in table.rows if row["path"] is not None}
    used |= {title + ending for title in used for ending in slide_folders.MASK_ENDINGS}
    left = [path.name for path in files.paths if title_of(path) not in used]
    if left:
        verb = "slide has" if len(left) == 1 else "slides have"
        print(f"{files.folder}: {len(left)} {verb} no row in {table.path}, such as {left[0]}")


def _placed(
    table: Table, files: SlideFiles, reads_path: bool = True, says: bool = True
) -> list[Row]:
    """Find the path of the file of each row, or None, and say which are matched as numbers.

    The file is that of the column `path`, if that is read, else that of the name of the slide.

    Raises:
        SourceError: A slide has two rows, a name has two files, or two slides have one file, one of them by its name.
    """
    table.check_unique(SLIDE, "slide")
    placed, as_numbers = [], []
    slide_of: dict[Path, tuple[bool, Row]] = {}
    for row in table.rows:
        by_path = bool(reads_path and row.get("path"))
        match = None if by_path else files.match(row[SLIDE])
        path = table.file(row["path"]) if by_path else match and match.things[0]
        placed.append(row | {"path": path})
        if match and match.how == names.NUMBER:
            as_numbers.append(row[SLIDE])
        if path is None:
            continue
        other_by_path, other = slide_of.setdefault(path, (by_path, row))
        if other is not row and not (by_path and other_by_path):
            raise SourceError(
                f"{row.place}: slide {row[SLIDE]} has the file {path}, and so has {other[SLIDE]} in {other.line}; "
                "expected a file for each. Correct the names, or remove a line."
            )
    if says:
        side_tables.say_numbers(table.path, as_numbers)
    return placed


def _free(files: SlideFiles, rows: Sequence[Row]) -> list[str]:
    """The names of the files that no row has; none are listed if all rows have one."""
    if all(row["path"] for row in rows):
        return []
    used = {str(row["path"]) for row in rows}
    return [name for name, file in files.names.items if file not in used]


def load(
    settings: CohortSettings,
    slides: Labelled,
    opener: Callable[[Path], Any],
    gather: Callable[[Opened], Any],
    flag: str = SlideFiles.FLAG,
) -> Data:
    """Open the files of the slides of each split, and gather those of a split; `flag` names their folder.

    In an evaluation, those of one split.

    Raises:
        SourceError: No slide of a split can be used.
    """
    opened = run_data.open_all(
        slides.table,
        lambda row: opener(slide_folders.slide_file(row, flag)),
        settings,
        SLIDE,
        "slides",
    )
    data = slides.data(run_data.with_labels(opened, gather))
    return replace(data, decided={}, table=_saved(slides, bool(settings.test_only)))


def _saved(slides: Labelled, test_only: bool) -> tuple[dict[str, Any], ...]:
    """The rows as a run saves them, with the paths of the slides."""
    rows = run_data.rows_of_run(slides.table, test_only)
    paths = ("" if row["path"] is None else str(row["path"].resolve()) for row in rows)
    saved = slides.saved(SLIDE, test_only)
    return tuple(row | {"path": path} for row, path in zip(saved, paths, strict=True))


class Opener:
    """Opens slides at the resolution that the flags ask for; a file is open only while it is read.

    Raises:
        SourceError: More than one resolution is asked for, or `--mpp-of` is no such table.
    """

    def __init__(self, settings: CohortSettings, rows: Sequence[Row] = ()) -> None:
        level = getattr(settings, "level", None) or 0
        self.look: dict[str, Any] = {"mpp": settings.mpp, "magnification": settings.magnification}
        values = [value for value in self.look.values() if value is not None]
        if len(values) + bool(level) > 1:
            raise paths.FlagError(
                "more than one resolution; expected one of --mpp, --magnification, --level. Remove the others."
            )
        self.look = self.look if values else {"level": level}
        self.reader, self.slide_mpp = settings.reader, settings.slide_mpp
        self.stain = settings.stain
        self.sizes = _sizes(settings.mpp_of, rows) if settings.mpp_of else {}
        self.run = settings.test_only
        self.scales: dict[str, scales.Scale] = {}
        self._tiled: dict[str, tuple[Path, sources.Coords]] = {}

    def image(self, path: Path) -> sources.Source:
        """Open the slide as an image, with normalised colours if asked for."""
        image = sources.OnDisk(path, **self.look, **self._options(path))
        if title_of(path) not in self.scales:
            with closing(self.slide(path)) as slide:
                pixel = image.mpp or (slide.mpp and _scaled(slide, image))
                self.scales[title_of(path)] = scales.scale_of(slide, pixel)
        if self.stain == stain.NONE:
            return image
        with closing(self.slide(path)) as slide:
            return stain.normalised(image, slide, self.stain)

    def slide(self, path: Path) -> sources.Slide:
        """Open the slide with its levels; the caller closes it."""
        return sources.open_slide(path, mpp=self._options(path)["pixel"], reader=self.reader)

    def tiles(self, path: Path, coords: sources.Coords | Selection) -> Any:
        """Open the bag of tiles `coords`, or of those that a selection finds."""
        slide = self.slide(path)
        try:
            if isinstance(coords, Selection):
                coords = coords.find(slide, slide.step(**self.look))
            image = sources.OnDisk(path, step=coords.step, **self._options(path))
            normalised = stain.normalised(image, slide, self.stain)
            bag = coords.tiles_of(normalised, slide.shape)
            self.scales[title_of(path)] = scales.scale_of(slide, bag.mpp)
        finally:
            slide.close()
        bag.name = title_of(path)
        self._tiled[bag.name] = path, coords
        return bag

    def with_pixels(self, data: Data) -> Data:
        """Write the size of the pixels of each slide into the table of the data; print lines about odd ones."""
        scales.say(self.scales, self.run)
        return replace(
            data,
            table=scales.with_pixels(data.table, self.scales, lambda row: title_of(row["path"])),
        )

    def origin_of(self, bag: sources.Bag) -> Origin | None:
        """A function that opens the slide of a bag of `tiles`, and its tiles; None for other bags."""
        if bag.name not in self._tiled:
            return None
        path, coords = self._tiled[bag.name]
        return partial(self.slide, path), replace(coords, coords=np.asarray(bag.coords))

    def _options(self, path: Path) -> dict[str, Any]:
        return {"pixel": self._pixel(path), "reader": self.reader}

    def _pixel(self, path: Path) -> float | None:
        """The size of pixels in `--mpp-of`, or that of `--slide-mpp` if the file does not say it, or None."""
        size = self.sizes.get(str(path))
        if size is not None or self.slide_mpp is None:
            return size
        slide = sources.open_slide(path, reader=self.reader)
        slide.close()
        unknown = slide.mpp is None or not is_plausible(slide.mpp)
        return self.slide_mpp if unknown else None


def _scaled(slide: sources.Slide, image: sources.Source) -> Mpp:
    """The size of a pixel of an image of a whole slide, whose size is known."""
    assert slide.mpp is not None
    rows, columns = (
        m * n / k for m, n, k in zip(slide.mpp, slide.shape, image.shape, strict=False)
    )
    return rows, columns


def _sizes(table: str, rows: Sequence[Row]) -> dict[str, float]:
    """Read the size of pixels by the path of a slide; rows of the table name the file or the `slide_id`."""
    places = [(row, str(row["path"] or row["slide_id"])) for row in rows]
    items = [(os.path.abspath(place), place) for row, place in places if row["path"]]
    items += [(row["slide_id"], place) for row, place in places]
    return side_tables.assigned(table, sources.read_mpp_table(table), Names(items))


def with_splits(table: Table, settings: TableSettings) -> Table:
    """Find the split of each slide of a table, or of those that a file of splits names.

    In an evaluation, slides of the run keep their split; others are for testing, unless their column says otherwise
    and `--eval-split all` does not.
    """
    if settings.test_only:
        return _evaluated(table, Path(settings.test_only), settings.eval_split)
    return splitting.with_splits(table, settings)


def _evaluated(table: Table, run: Path, eval_split: str) -> Table:
    """Split the rows for an evaluation, and say which have the names of slides of training."""
    if "split" in table.columns:
        table.check_splits()
    file = run / TABLE
    of_run = run_folder.read_rows(file)
    split_of_path = {Path(row["path"]): row["split"] for row in of_run if row.get("path")}
    all_are_tested = {"split": "test"} if eval_split == "all" else {}
    found = []
    for row in table.rows:
        path = row["path"] and row["path"].resolve()
        known = {"split": split_of_path[path]} if path in split_of_path else {}
        found.append(Row({"split": "test"}, row.place) | row | all_are_tested | known)
    learned = [row for row in of_run if run_folder.column(file, row, "split") != "test"]
    names_of_run = Names((run_folder.column(file, row, SLIDE), row) for row in learned)
    others = [row for row in found if row["split"] == "test" and row["path"]]
    seen = [row[SLIDE] for row in others if names_of_run.match(row[SLIDE])]
    if seen:
        print(
            f"warning: {len(seen)} of {counted(len(others), 'slide')} to test on, such as {seen[0]}, have the name of "
            f"a slide that {run} learned from, at another path",
            file=sys.stderr,
        )
    return table.with_rows(found)
