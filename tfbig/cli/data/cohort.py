"""Slides of a table, as bags of tiles or whole images, opened when they are read and split by case."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from tfbig import SourceError, sources
from tfbig.cli import messages, paths
from tfbig.cli.data import feature_folders, scales, slide_folders, splits, stain
from tfbig.cli.data.feature_folders import FeatureFiles
from tfbig.cli.data.folds import fold_rows
from tfbig.cli.data.splits import Row
from tfbig.cli.data.target_columns import ClassColumn, TargetColumns
from tfbig.cli.data.tile_selection import Selection
from tfbig.cli.settings.tasks import ImageSettings, MILSettings, SegmentationSettings
from tfbig.errors import TfbigError, one_line
from tfbig.sources.resolution import Mpp, is_plausible
from tfbig.sources.slides.slide import title_of

TABLE = "slides.csv"
SLIDE = "slide_id"
"""Column that names a slide."""
PIXELS = ("mpp_rows", "mpp_columns")
"""Columns of the table of a run: micrometres per pixel of what is read of a slide."""
CohortSettings: TypeAlias = MILSettings | ImageSettings
"""Settings of a run on slides of a table."""
TableSettings: TypeAlias = CohortSettings | SegmentationSettings
"""Settings of a run whose table of slides may have no labels."""
UNREADABLE = (TfbigError, OSError, ValueError, MemoryError)


@dataclass(frozen=True)
class Cohort:
    """Slides of a run.

    Attributes:
        rows: Dicts of `slide_id`, `label`, `split`, and `path`, which is None if the file is missing.
        columns: Reader of what is to be predicted.
        classes: Names of the classes, by number, or of several labels.
        cases: Names of the cases that labels number, if they do.
    """

    rows: tuple[Row, ...]
    columns: TargetColumns
    classes: tuple[str, ...]
    cases: tuple[str, ...] = ()

    def of_split(self, split: str) -> list[Row]:
        """Return the rows of a split.

        Args:
            split: Name of the split.

        Raises:
            SourceError: The split has no rows.
        """
        rows = [row for row in self.rows if row["split"] == split]
        if not rows:
            raise SourceError(
                f"of {len(self.rows)} slides none is in split '{split}': there are too few slides, or the column "
                "split does not contain it. Add slides, a column split (train, val, test), or use --folds."
            )
        return rows

    def table(self, *names: str) -> tuple[Row, ...]:
        """Return the rows of some splits, as a run saves them."""
        cases = any(row.get("case_id") for row in self.rows)
        return tuple(
            {
                "slide_id": row["slide_id"],
                **self.columns.shown(row, self.classes),
                "split": row["split"],
            }
            | ({"case_id": row.get("case_id") or ""} if cases else {})
            | {"path": "" if row["path"] is None else str(row["path"].resolve())}
            for row in self.rows
            if row["split"] in names
        )


def read(settings: CohortSettings, columns: TargetColumns | None = None) -> Cohort:
    """Return the slides of `--data`: a table, a folder with `slides.csv`, or a folder of slides for each class.

    A folder of features may have `features.csv` instead. Columns are `slide_id` and those to be predicted; optional are
    `case_id`, `split` and `path`.

    Args:
        settings: Settings of the run.
        columns: Reader of what is to be predicted; by default the column `label`, numbers or names.

    Raises:
        FlagError: There is no `--data`.
        SourceError: The table is missing, lacks a column, or none of its slides has a file.
    """
    if settings.data is None:
        raise paths.FlagError(
            "slides need --data FILE, a table with columns case_id, slide_id, label, such as tfbig dataset writes."
        )
    table = _table(Path(settings.data), settings)
    columns = columns or ClassColumn(settings)
    if Path(settings.data).is_dir() and not table.exists():
        rows = _rows_of_classes(Path(settings.data), columns)
    else:
        rows = splits.read_table(table, (SLIDE, *columns.names))
    found = columns.labelled(rows, table, SLIDE)
    rows = with_paths(found.rows, table, settings)
    is_of_features = isinstance(settings, MILSettings) and settings.bags == "features"
    if settings.slides and not settings.test_only and not is_of_features:
        _print_unlisted(Path(settings.slides), table, rows)
    rows = with_splits(rows, settings)
    return Cohort(tuple(rows), columns, found.classes, found.cases)


def _rows_of_classes(folder: Path, columns: TargetColumns) -> list[Row]:
    """Return rows of the slides in a folder for each class; its name is the label.

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
    return [
        {SLIDE: title_of(path), "label": name, "path": str(path), "place": str(path)}
        for name, slides in classes.items()
        for path in slides
    ]


def _print_unlisted(folder: Path, table: Path, rows: Sequence[Row]) -> None:
    """Print how many slides of a folder have no row in the table, and so are not used.

    Files that are named after a slide of the table, such as `SLIDE_mask.png`, do not count.
    """
    used = {title_of(row["path"]) for row in rows if row["path"] is not None}
    files = slide_folders.slides_below(folder)
    names = [path.name for path in files if used.isdisjoint(_beginnings(path.name))]
    if names:
        verb = "slide has" if len(names) == 1 else "slides have"
        print(f"{folder}: {len(names)} {verb} no row in {table}, such as {names[0]}")


def _beginnings(name: str) -> Iterator[str]:
    """Yield what precedes each mark in a name that is neither a letter nor a digit."""
    return (name[: mark.start()] for mark in re.finditer(r"[\W_]", name))


def _table(data: Path, settings: CohortSettings) -> Path:
    """Return the table that `--data` names, or that is in the folder that it names."""
    if not data.is_dir():
        return data
    own = data / feature_folders.TABLE
    is_of_features = isinstance(settings, MILSettings) and settings.bags == "features"
    return own if is_of_features and own.exists() else data / TABLE


def is_table(path: str | Path) -> bool:
    """Return whether a path among slides is that of a table of them."""
    return Path(path).suffix.lower() == ".csv"


def slides_of_table(table: Path) -> list[Row]:
    """Return the rows of a table with a column `slide_id`, with the `path` of each slide.

    Slides are found by an optional column `path`, as it is or relative to the table, or by name in the folder of the
    table. The path of a slide that does not exist is where it was expected.

    Args:
        table: Path of the table.

    Raises:
        SourceError: The table has no such column, or a slide has two lines or two files.
    """
    rows = splits.read_table(table, ("slide_id",))
    _check_unique(rows, table)
    files = _Files(table.parent)
    return [
        row | {"path": _path(row, table, files) or table.parent / row["slide_id"]} for row in rows
    ]


def with_paths(rows: Sequence[Row], table: Path, settings: TableSettings) -> list[Row]:
    """Return the rows of a table with the `path` of each slide, which is None if the file is missing.

    Args:
        rows: Rows with `slide_id`, and optional `path`.
        table: Path of the table.
        settings: Settings of the run.

    Raises:
        SourceError: A slide has two lines or two files, none has a file, or with `--confine` one is elsewhere.
    """
    _check_unique(rows, table)
    folder, file_of, flag = _files(table, settings)
    placed = [row | {"path": file_of(row)} for row in rows]
    if settings.confine:
        splits.check_inside((row["path"] for row in placed if row["path"]), (folder, table.parent))
    if all(row["path"] is None for row in placed):
        raise SourceError(
            f"{folder}: holds none of the {len(rows)} slides of {table}; the first is {rows[0]['slide_id']}. "
            f"Check {flag}."
        )
    return placed


def _files(table: Path, settings: TableSettings) -> tuple[Path, Callable[[Row], Path | None], str]:
    """Return a folder, its flag, and between them a function from a row to the file of its slide or features."""
    if isinstance(settings, MILSettings) and settings.bags == "features":
        folder = Path(settings.features or table.parent)
        features = FeatureFiles(folder)
        if settings.features:  # paths of the table may be those of the slides
            return folder, lambda row: features.of(row["slide_id"]), "--features"
        return folder, lambda row: _path(row, table, features), "--features"
    folder = Path(settings.slides or table.parent)
    files = _Files(folder)
    return folder, lambda row: _path(row, table, files), "--slides"


def load(
    settings: CohortSettings, cohort: Cohort, open_split: Callable[[list[Row]], Any]
) -> splits.Data:
    """Return the data of each split; in an evaluation, of the test slides only.

    Args:
        settings: Settings of the run.
        cohort: Slides of the run.
        open_split: Function from the rows of a split to its set.
    """
    shown = ("test",) if settings.test_only else splits.SPLITS
    return splits.Data.opened(
        lambda split: open_split(cohort.of_split(split)),
        cohort.classes,
        bool(settings.test_only),
        cases=cohort.cases,
        table=cohort.table(*shown),
    )


class Opener:
    """Opens slides at the resolution that the flags ask for; a file is open only while it is read."""

    def __init__(self, settings: CohortSettings) -> None:
        level = getattr(settings, "level", None) or 0
        self.look: dict[str, Any] = {"mpp": settings.mpp, "magnification": settings.magnification}
        values = [value for value in self.look.values() if value is not None]
        if len(values) + bool(level) > 1:
            raise SourceError(
                "more than one resolution; expected one of --mpp, --magnification, --level. Remove the others."
            )
        self.look = self.look if values else {"level": level}
        self.reader, self.slide_mpp = settings.reader, settings.slide_mpp
        self.stain = settings.stain
        self.sizes = sources.read_mpp_table(settings.mpp_of) if settings.mpp_of else {}
        self.run = settings.test_only
        self.scales: dict[str, scales.Scale] = {}
        self._tiled: dict[str, tuple[Path, sources.Coords]] = {}

    def image(self, path: Path) -> sources.Source:
        """Return the slide as an image, with normalised colours if asked for."""
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
        """Return the slide with its levels; the caller closes it."""
        return sources.open_slide(path, mpp=self._options(path)["pixel"], reader=self.reader)

    def tiles(self, path: Path, coords: sources.Coords | Selection) -> Any:
        """Return the bag of tiles `coords`, or of those that a selection finds."""
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

    def with_pixels(self, data: splits.Data) -> splits.Data:
        """Return the data with the size of the pixels of each slide in its table; print lines about odd or other ones.

        Args:
            data: Data of the run.
        """
        said = scales.lines(self.scales)
        if self.run:
            pixels = {name: scale.pixel for name, scale in self.scales.items()}
            said += scales.against_run(pixels, trained_pixels(self.run))
        for line in said:
            print(line, file=sys.stderr)
        rows = []
        for row in data.table:
            found = self.scales.get(title_of(row["path"])) if row["path"] else None
            rows.append(row | dict(zip(PIXELS, (found and found.pixel) or ("", ""), strict=True)))
        return replace(data, table=tuple(rows))

    def placed_on(self, bag: sources.Bag) -> splits.Placed | None:
        """Return a function that opens the slide of a bag of `tiles`, and its tiles; None for other bags."""
        if bag.name not in self._tiled:
            return None
        path, coords = self._tiled[bag.name]
        return partial(self.slide, path), replace(coords, coords=np.asarray(bag.coords))

    def _options(self, path: Path) -> dict[str, Any]:
        return {"pixel": self._pixel(path), "reader": self.reader}

    def _pixel(self, path: Path) -> float | None:
        """Return the size of pixels in `--mpp-of`, or that of `--slide-mpp` if the file does not say it, or None."""
        size = self.sizes.get(path.name, self.sizes.get(title_of(path)))
        if size is not None or self.slide_mpp is None:
            return size
        slide = sources.open_slide(path, reader=self.reader)
        slide.close()
        unknown = slide.mpp is None or not is_plausible(slide.mpp)
        return self.slide_mpp if unknown else None


def _scaled(slide: sources.Slide, image: sources.Source) -> Mpp:
    """Return the size of a pixel of an image of a whole slide, whose size is known."""
    assert slide.mpp is not None
    rows, columns = (
        m * n / k for m, n, k in zip(slide.mpp, slide.shape, image.shape, strict=False)
    )
    return rows, columns


def trained_pixels(run: str | Path) -> tuple[Mpp, ...]:
    """Return the sizes of the pixels that a run was trained on, as its table of slides says; none if it does not.

    Args:
        run: Path of the run folder, or of a model.
    """
    table = Path(run) / TABLE
    if not table.is_file():
        return ()
    rows = splits.read_table(table, (SLIDE,))
    rows = [row for row in rows if row.get(PIXELS[0]) and row.get("split") == "train"]
    sizes = [[float(row[name]) for name in PIXELS] for row in rows]
    return tuple({(size[0], size[1]) for size in sizes})


def open_rows(
    rows: Sequence[Row], opener: Callable[[Path], Any], flag: str = "--slides"
) -> tuple[list[Any], list[Any], list[tuple[str, str]]]:
    """Return `(items, labels, failed)`; `failed` lists `(name, reason)` of slides that cannot be used.

    Args:
        rows: Rows of the slides.
        opener: Function from a path to an item.
        flag: Flag that names the folder of the files.

    Raises:
        SourceError: No slide can be used.
    """
    items, labels, failed = [], [], []
    for row in rows:
        try:
            if row["path"] is None:
                raise SourceError(f"no file of slide {row['slide_id']}. Check {flag}.")
            items.append(opener(row["path"]))
            labels.append(row["label"])
        except UNREADABLE as error:
            text = messages.in_flags(error, "train")
            reason = one_line(text).removeprefix(f"{row['place']}: ")
            failed.append((row["slide_id"], f"{row['place']}: {reason}"))
    if not items:
        raise splits.none_usable("slides", rows[0]["split"], failed)
    return items, labels, failed


def _check_unique(rows: Sequence[Row], table: Path) -> None:
    """Check that every slide has one row.

    Raises:
        SourceError: A slide has two rows.
    """
    places: dict[str, str] = {}
    for row in rows:
        place = row["place"].removeprefix(f"{table}: ")
        first = places.setdefault(row["slide_id"], place)
        if first != place:
            raise SourceError(
                f"{table}: slide {row['slide_id']} is in {first} and {place}. Remove one."
            )


def _path(row: Row, table: Path, files: _Files | FeatureFiles) -> Path | None:
    """Return the file of a row: its `path`, as it is or relative to the table, else the file of that name or None."""
    if row.get("path"):
        path = Path(row["path"])
        return path if path.exists() else table.parent / path
    return files.of(row["slide_id"])


class _Files:
    """Slides of a folder and its subfolders by name, without results; listed on first use."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._paths: dict[str, list[Path]] | None = None

    def of(self, slide: str) -> Path | None:
        """Return the file of a slide, or None.

        Raises:
            SourceError: There are two.
        """
        if self._paths is None:
            self._paths = {}
            for path in slide_folders.slides_below(self.folder):
                self._paths.setdefault(title_of(path), []).append(path)
        paths = self._paths.get(title_of(slide)) or self._paths.get(slide) or []
        if len(paths) > 1:
            raise SourceError(
                f"{paths[0]} and {paths[1]} are both named '{slide}'. Use --slides to name the folder of the slides, "
                "or add a column path to the table."
            )
        return paths[0] if paths else None


def with_splits(rows: list[Row], settings: TableSettings) -> list[Row]:
    """Return the rows with their split; slides that a file of splits does not name are dropped.

    Splits that are drawn depend on the table alone, not on which files are there: a run that is resumed when a missing
    file was added must not test on slides that it was trained on.

    In an evaluation, slides of the run keep their split; others are for testing, unless their column says otherwise
    and `--eval-split all` does not.

    Args:
        rows: Rows with `slide_id`, `label` and `path`, and optional `split` and `case_id`.
        settings: Settings of the run.
    """
    if settings.test_only:
        split_of_path = _splits_of_run(Path(settings.test_only))
        return [
            {"split": "test"}
            | row
            | ({"split": "test"} if settings.eval_split == "all" else {})
            | ({"split": split_of_path[path]} if path in split_of_path else {})
            for row, path in ((row, row["path"] and row["path"].resolve()) for row in rows)
        ]
    if settings.splits:
        return _rows_of_splits(rows, Path(settings.splits))
    if settings.group and not settings.folds:
        raise paths.FlagError(f"--group {settings.group}: needs --folds. Add it.")
    if settings.folds:
        fold = settings.fold or 0
        return fold_rows(rows, settings.folds, fold, settings.seed, settings.group)
    if "split" in rows[0]:
        return rows
    return splits.split_rows(rows, settings.shares, settings.seed)


def _rows_of_splits(rows: Sequence[Row], path: Path) -> list[Row]:
    """Return the rows that a file of splits names, with their split.

    Raises:
        SourceError: It names none of them.
    """
    split_of_slide = splits.read_clam_splits(path)
    named = [row for row in rows if row["slide_id"] in split_of_slide]
    if not named:
        raise SourceError(
            f"{path}: names none of the {len(rows)} slides of the table, such as {rows[0]['slide_id']}. Check --splits."
        )
    return [row | {"split": split_of_slide[row["slide_id"]]} for row in named]


def _splits_of_run(run: Path) -> dict[Path, str]:
    """Return `{path: split}` of the slides of a run."""
    table = run / TABLE
    if not table.exists():
        return {}
    rows = splits.read_table(table, ("slide_id", "split"))
    return {Path(row["path"]): row["split"] for row in rows if row["path"]}
