"""Slides of a table as bags of tiles or as whole images: found, opened when they are read, split by case."""

from dataclasses import dataclass
from pathlib import Path

from tfbig import SourceError, sources
from tfbig.cli import settings as command_line
from tfbig.cli.data import splits
from tfbig.errors import TfbigError
from tfbig.results import run_folder
from tfbig.sources.slides.slide import title_of
from tfbig.tissue import tiling
from tfbig.tissue.masks import find_tissue

TABLE = "slides.csv"
COLUMNS = ("slide_id", "label")
RESULTS = ("tile.yaml", "predict.yaml", run_folder.CONFIG)
"""Files of folders in which nothing is a slide."""
UNREADABLE = (TfbigError, OSError, ValueError, MemoryError)


@dataclass(frozen=True)
class Cohort:
    """Slides of a run.

    Attributes:
        rows: dicts of `slide_id`, `label` (a number), `split`, and `path`, which is None where there is no file.
        classes: names, by their numbers.
    """

    rows: tuple[dict, ...]
    classes: tuple[str, ...]

    def of_split(self, split):
        """Rows of a split.

        Raises:
            SourceError: there are none.
        """
        found = [row for row in self.rows if row["split"] == split]
        if not found:
            raise SourceError(
                f"of {len(self.rows)} slides none is in split '{split}': they are too few for the splits asked for, or "
                "the column split does not have it. Give more slides, a column split (train, val, test), or --folds."
            )
        return found

    def table(self, *wanted):
        """Rows of some splits, as a run keeps them."""
        return tuple(
            {
                "slide_id": row["slide_id"],
                "label": self.classes[row["label"]],
                "split": row["split"],
            }
            | {"path": "" if row["path"] is None else str(row["path"].resolve())}
            for row in self.rows
            if row["split"] in wanted
        )


def add_flags(add):
    """Flags that say which slides, and how they are seen."""
    add(
        "--slides",
        metavar="FOLDER",
        help="where the slides of slides.csv are, however deep (default: beside it; its column path wins)",
    )
    add(
        "--class-names",
        nargs="+",
        metavar="NAME",
        help="labels that there are, in order (default: those of the table, sorted)",
    )
    add("--splits", metavar="FILE", help="splits_0.csv of CLAM: columns train, val, test")
    add(
        "--folds",
        type=command_line.count,
        help="of cross-validation, by case and stratified by label",
    )
    add(
        "--fold",
        type=command_line.natural,
        default=0,
        help="that tests; the next one validates (default: 0)",
    )
    add("--mpp", type=command_line.positive, help="micrometres per pixel at which slides are seen")
    add("--magnification", type=command_line.positive, help="the same, e.g. 20")
    add("--mpp-of", metavar="FILE", help="CSV wsi,mpp of slides that do not say it")
    add("--reader", choices=["tifffile", "openslide", "zarr"], help="(default: by the format)")
    add(
        "--confine",
        action="store_true",
        help="files that tables name must be in the folder of the table, or in --slides, links followed: for tables of "
        "others",
    )


def read(settings):
    """The slides of `--data`: a table, or a folder with `slides.csv`.

    Columns: `slide_id`, `label` (numbers, or names), and where there are `case_id`, `split` and `path`.

    Raises:
        SourceError: the table is missing or lacks a column, or no slide of it has a file.
    """
    if settings.data is None:
        raise SourceError(
            "slides need --data FILE, a table with columns case_id, slide_id, label; tfbig dataset writes it."
        )
    table = Path(settings.data)
    table = table / TABLE if table.is_dir() else table
    rows = splits.read_table(table, COLUMNS, names=True)
    _check_once(rows, table)
    classes = tuple(settings.class_names or _classes([row["label"] for row in rows], table))
    folder = Path(settings.slides or table.parent)
    files = _Files(folder)
    rows = [
        row | {"label": _number(row, classes, table), "path": _path(row, table, files)}
        for row in rows
    ]
    if settings.confine:
        splits.check_inside((row["path"] for row in rows if row["path"]), (folder, table.parent))
    if all(row["path"] is None for row in rows):
        raise SourceError(
            f"{folder}: holds none of the {len(rows)} slides of {table}, the first is {rows[0]['slide_id']}. "
            "Check --slides."
        )
    return Cohort(tuple(_split(rows, settings)), classes)


def load(settings, known, opened_split):
    """The splits of a run: a set of each, or, where a run is judged, that of the test slides alone.

    Args:
        settings: of the run.
        known: the cohort.
        opened_split: from the rows of a split to its set.
    """
    if settings.test_only:
        test = opened_split(known.of_split("test"))
        return splits.Data(test, test, test, known.classes, known.table("test"))
    sets = [opened_split(known.of_split(split)) for split in splits.SPLITS]
    return splits.Data(*sets, known.classes, known.table(*splits.SPLITS))


class Opener:
    """Opens slides as the flags say, each file only while it is read."""

    def __init__(self, settings):
        self.look = {"mpp": settings.mpp, "magnification": settings.magnification}
        given = [value for value in self.look.values() if value is not None]
        if len(given) > 1:
            raise SourceError("slides are seen at one resolution: --mpp or --magnification.")
        self.look = self.look if given else {"level": getattr(settings, "level", 0)}
        self.reader = settings.reader
        self.sizes = sources.read_mpp_table(settings.mpp_of) if settings.mpp_of else {}

    def image(self, path):
        """The slide as an image."""
        return sources.OnDisk(path, **self.look, **self._options(path))

    def slide(self, path):
        """The slide with its levels; close it."""
        pixel = self._options(path)["pixel"]
        return sources.open_slide(path, mpp=pixel, reader=self.reader)

    def tiles(self, path, coords):
        """A bag of tiles `coords` of a slide, or of those that are found on it: `(size, smallest share of tissue)`."""
        slide = self.slide(path)
        try:
            if not isinstance(coords, sources.Coords):
                size, share = coords
                tissue = find_tissue(slide)
                step = slide.step(**self.look)
                coords = tiling.tile(slide, size, step=step, tissue=tissue, smallest_share=share)
            image = sources.OnDisk(path, step=coords.step, **self._options(path))
            bag = coords.tiles_of(image, slide.shape)
        finally:
            slide.close()
        bag.name = title_of(path)
        return bag

    def _options(self, path):
        size = self.sizes.get(path.name, self.sizes.get(title_of(path)))
        return {"pixel": size, "reader": self.reader}


def opened(rows, opener):
    """`(items, labels, failed)`: what `opener` makes of the path of each row, and `(name, reason)` of the others."""
    items, labels, failed = [], [], []
    for row in rows:
        try:
            if row["path"] is None:
                raise SourceError("there is no such slide. Check --slides.")
            items.append(opener(row["path"]))
            labels.append(row["label"])
        except UNREADABLE as error:
            failed.append((row["slide_id"], " ".join(str(error).split())))
    if not items:
        raise SourceError(
            f"none of {len(rows)} slides can be used. The first: {failed[0][0]}: {failed[0][1]}"
        )
    return items, labels, failed


def _check_once(rows, table):
    """Every slide has one line.

    Raises:
        SourceError: one has two.
    """
    lines = {}
    for number, row in enumerate(rows, start=2):
        before = lines.setdefault(row["slide_id"], number)
        if before != number:
            raise SourceError(
                f"{table}: slide {row['slide_id']} is in lines {before} and {number}. Take one out."
            )


def _classes(labels, table):
    """Names of the classes: numbers are their own names, and go from 0.

    Raises:
        SourceError: there is one alone, or some labels are numbers and others names.
    """
    kinds = sorted(set(labels))
    numbers = [label for label in kinds if label.isdigit()]
    if len(kinds) == 1 or 0 < len(numbers) < len(kinds):
        what = "numbers and names" if numbers and len(kinds) > 1 else "one label alone"
        raise SourceError(
            f"{table}: has {what}: {', '.join(kinds[:10])}. Check the labels, or name all with --class-names."
        )
    return map(str, range(max(map(int, kinds)) + 1)) if numbers else kinds


def _number(row, classes, table):
    """The class of a row.

    Raises:
        SourceError: it is none of those.
    """
    if row["label"] not in classes:
        raise SourceError(
            f"{table}: slide {row['slide_id']} has label '{row['label']}'; expected one of {', '.join(classes)} "
            "(--class-names)."
        )
    return classes.index(row["label"])


def _path(row, table, files):
    """The file of a row: of its column `path`, as it is or beside the table, or of that name; None if there is none."""
    if row.get("path"):
        own = Path(row["path"])
        return own if own.exists() else table.parent / own
    return files.of(row["slide_id"])


class _Files:
    """Slides of a folder, however deep, by title, but not results; looked for when the first is asked for."""

    def __init__(self, folder):
        self.folder, self._found = folder, None

    def of(self, slide):
        """The file of a slide, or None.

        Raises:
            SourceError: there are two.
        """
        if self._found is None:
            self._found = {}
            paths = sorted(self.folder.rglob("*"))
            results = {path.parent for path in paths if path.name in RESULTS}
            for path in paths:
                if path.suffix.lower() in sources.SLIDE_SUFFIXES and not results & {*path.parents}:
                    self._found.setdefault(title_of(path), []).append(path)
        found = self._found.get(title_of(slide)) or self._found.get(slide) or [None]
        if len(found) > 1:
            raise SourceError(
                f"{found[0]} and {found[1]} are both slide '{slide}'. Say with --slides where the slides are, or name "
                "the paths in a column path of the table."
            )
        return found[0]


def _split(rows, settings):
    """Rows with their split; slides that a file of splits does not name are left out.

    Where a run is judged, slides that it knows stay in the split that they were in; others are to test with, but for
    what their column says.
    """
    if settings.test_only:
        before = _splits_of_run(Path(settings.test_only))
        return [
            {"split": "test"} | row | ({"split": before[path]} if path in before else {})
            for row, path in ((row, row["path"] and row["path"].resolve()) for row in rows)
        ]
    if settings.splits:
        known = splits.read_clam_splits(Path(settings.splits))
        return [row | {"split": known[row["slide_id"]]} for row in rows if row["slide_id"] in known]
    if settings.folds:
        return splits.fold_rows(rows, settings.folds, settings.fold, settings.seed)
    if "split" in rows[0]:
        return rows
    return splits.split_rows(rows, seed=settings.seed)


def _splits_of_run(run):
    """`{path: split}` of the slides of a run."""
    table = run / TABLE
    if not table.exists():
        return {}
    rows = splits.read_table(table, COLUMNS, names=True)
    return {Path(row["path"]): row["split"] for row in rows if row["path"]}
