"""Slides of a table as bags of tiles or as whole images: found, opened when they are read, split by case."""

from dataclasses import dataclass
from pathlib import Path

from models import settings as command_line
from models.tasks import splits
from tfbig import SourceError, sources, tiling
from tfbig.errors import TfbigError
from tfbig.sources.slide import title_of
from tfbig.tissue import find_tissue

TABLE = "slides.csv"
COLUMNS = ("slide_id", "label")
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
        return splits.of_split(self.rows, split, "the table of slides")


def add_flags(add):
    """Flags that say which slides, and how they are seen."""
    add(
        "--slides",
        metavar="FOLDER",
        help="where the slides of slides.csv are, however deep (default: beside it; its column path wins)",
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
    labels, classes = _numbered([row["label"] for row in rows])
    rows = [row | {"label": label} for row, label in zip(rows, labels, strict=True)]
    folder = Path(settings.slides or table.parent)
    files = _by_title(folder)
    for row in rows:
        own = row.get("path") or files.get(title_of(row["slide_id"])) or files.get(row["slide_id"])
        row["path"] = Path(own) if own else None
    if all(row["path"] is None for row in rows):
        raise SourceError(
            f"{folder}: holds none of the {len(rows)} slides of {table}, the first is {rows[0]['slide_id']}. "
            "Check --slides."
        )
    return Cohort(tuple(_split(rows, settings)), classes)


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


def _numbered(labels):
    """Labels as numbers, and the names of the classes: numbers are their own names."""
    if all(label.isdigit() for label in labels):
        numbers = [int(label) for label in labels]
        return numbers, tuple(map(str, range(max(numbers) + 1)))
    classes = tuple(sorted(set(labels)))
    return [classes.index(label) for label in labels], classes


def _by_title(folder):
    """Files of a folder, however deep, by title.

    Raises:
        SourceError: two have the same.
    """
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.suffix.lower() in sources.SLIDE_SUFFIXES:
            other = found.setdefault(title_of(path), path)
            if other != path:
                raise SourceError(
                    f"{path} and {other} are both slide '{title_of(path)}'. Rename one, or name the paths in a "
                    "column path of the table."
                )
    return found


def _split(rows, settings):
    """Rows with their split; slides that a file of splits does not name are left out."""
    if settings.splits:
        known = splits.read_clam_splits(Path(settings.splits))
        return [row | {"split": known[row["slide_id"]]} for row in rows if row["slide_id"] in known]
    if settings.folds:
        return splits.fold_rows(rows, settings.folds, settings.fold, settings.seed)
    if "split" in rows[0]:
        return rows
    return splits.split_rows(rows, seed=settings.seed)
