"""Slides in folders and their subfolders, without masks and the pictures of results."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import ClassVar, Final

from tfbig import sources
from tfbig.cli.data import side_tables
from tfbig.errors import SourceError
from tfbig.results import run_folder
from tfbig.sources import names
from tfbig.sources.names import Match, Names, suffix_of, title_of
from tfbig.sources.table import Row

RESULTS: Final = ("tile.yaml", "predict.yaml", "features.yaml", run_folder.CONFIG)
"""Files that mark a folder of results, whose images are not slides."""
MASKS: Final = "masks"
"""Name of a folder of masks, beside slides."""
MASK_ENDINGS: Final = ("_mask", "_masks", "_cp_masks", "_label", "_labels", "_seg")
"""Ends of the names of masks that lie beside their image."""
_MOST_SUFFIXES: Final = 5
BAG_SUFFIXES: Final = {".npy", ".h5", ".hdf5"}
"""Suffixes of bags of features."""


class SlideFiles:
    """Slides of a folder and its subfolders by name, without results; listed on first use.

    Attributes:
        FLAG: Flag that names the folder.
        ANYWHERE: Whether folders in a name only choose between files of that name.
    """

    FLAG: ClassVar[str] = "--slides"
    ANYWHERE: ClassVar[bool] = False

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @cached_property
    def paths(self) -> list[Path]:
        """The files."""
        return slides_below(self.folder)

    @cached_property
    def names(self) -> Names[str]:
        """The files by name."""
        return names.files(self.paths, self.folder, self.ANYWHERE)

    def match(self, slide: str) -> Match[Path] | None:
        """Find the file of a slide, and how its name was matched; None if there is no such file.

        Raises:
            SourceError: There are two.
        """
        found = self.names.match(slide)
        return found and Match(found.how, [self.only([*map(Path, found.things)], slide)])

    def only(self, paths: list[Path], slide: str) -> Path:
        """Choose one file among those of a slide.

        Raises:
            SourceError: There are two.
        """
        if len(paths) > 1:
            raise SourceError(
                f"{paths[0]} and {paths[1]} are both named '{slide}'. Use --slides to name the folder of the slides, "
                "or add a column path to the table."
            )
        return paths[0]


def slide_file(row: Row, flag: str = SlideFiles.FLAG) -> Path:
    """Return the file of the slide of a row, its `path`.

    Args:
        row: Row of a table of slides; it may have `near`, the file whose name is most like that of the slide.
        flag: Flag that names the folder of the files.

    Raises:
        SourceError: There is no such file: `path` is None.
    """
    if row["path"] is None:
        alike = side_tables.hint(row.get("near"))
        raise SourceError(f"no file of slide {row['slide_id']}{alike}. Check {flag}.")
    path: Path = row["path"]
    return path


def bags_in(folder: Path) -> list[Path]:
    """List the bags of features in a folder, by name."""
    return sorted(path for path in folder.iterdir() if path.suffix.lower() in BAG_SUFFIXES)


def slides_in(folder: Path) -> list[Path]:
    """List the slides in a folder, by name; if it has none, those in its subfolders, as GDC's downloads have."""
    return sorted(filter(_is_slide, folder.iterdir())) or slides_below(folder)


def slides_below(folder: Path) -> list[Path]:
    """List the slides in a folder and in its subfolders, by name; results and folders `masks` are left out."""
    files = sorted(folder.rglob("*"))
    others = {path.parent for path in files if path.name in RESULTS}
    others |= {path for path in files if path.name == MASKS}
    return [path for path in files if _is_slide(path) and not others & {*path.parents}]


def without_masks(files: Sequence[Path], title: Callable[[Path], str] = title_of) -> list[Path]:
    """Drop files that are named as the mask of another one: `name_mask.tif` is the mask of `name.tif`.

    `title` gives the name of a file without its suffixes.
    """
    masks = {title(file) + ending for file in files for ending in MASK_ENDINGS}
    return [file for file in files if title(file) not in masks]


def files_in(folder: Path, suffixes: Collection[str]) -> list[Path]:
    """List the files of a folder with some suffixes in lower case, by name; empty if it does not exist."""
    files = folder.iterdir() if folder.is_dir() else ()
    return sorted(file for file in files if suffix_of(file).lower() in suffixes)


def file_of(
    folder: Path, name: str, suffixes: Sequence[str], image: Path | None = None
) -> Path | None:
    """Find the file of a whole name in a folder, `NAME` and a suffix in any case; the first suffix goes before others.

    The file `image`, to which the other one belongs, does not count.

    Raises:
        SourceError: There are two.
    """
    files = (file for file in files_in(folder, suffixes) if title_of(file) == name)
    found = [file for file in files if image is None or file.resolve() != image.resolve()]
    first = [file for file in found if suffix_of(file).lower() == suffixes[0]]
    return _only(first or found, name)


def say_unused_masks(
    images: Sequence[Path], used: Collection[Path], suffixes: Collection[str]
) -> None:
    """Print to standard error which masks, in the folders `masks` beside images, are of none of these."""
    for folder in sorted({image.parent / MASKS for image in images}):
        masks = files_in(folder, suffixes)
        left = [mask.name for mask in masks if mask not in used]
        taken = {title_of(mask) for mask in used}
        free = [image.name for image in images if title_of(image) not in taken]
        side_tables.say_unmatched(folder, left, len(masks), free, "no image")


def masks_of(images: Sequence[Path], suffixes: Collection[str]) -> dict[Path, Path]:
    """Find the masks of the images that have one: `masks/name.*`, else `name_mask.*`, beside `name.tif`.

    Raises:
        SourceError: An image has two masks in `masks`, or two beside it; or two images have one mask.
    """
    folders = {image.parent for image in images}
    named = defaultdict[Path, list[Path]](list)
    for folder in (*folders, *(folder / MASKS for folder in folders)):
        for file in files_in(folder, suffixes):
            named[file.with_name(title_of(file))].append(file)
    found = {}
    for image in images:
        title = title_of(image)
        beside = [
            file for ending in MASK_ENDINGS for file in named[image.with_name(title + ending)]
        ]
        if mask := _only(named[image.parent / MASKS / title] or beside, image.name):
            found[image] = mask
    check_own(found, "mask")
    return found


def check_own(files: Mapping[Path, Path | None], kind: str) -> None:
    """Check that no two images have one file, as `a.png` and `a.tif` would have one mask `a.png`.

    Args:
        files: The file of each image that was found by the name of the image; None without one.
        kind: What the file is.

    Raises:
        SourceError: Two images have.
    """
    first: dict[Path, Path] = {}
    for image, file in files.items():
        if file and (other := first.setdefault(file, image)) != image:
            raise SourceError(
                f"{other} and {image} would both have the {kind} {file}; expected one image of each name. Rename or "
                "remove one."
            )


def _only(files: Sequence[Path], name: str) -> Path | None:
    """Return the only one of the files that belong to a name, or None if there is none.

    Raises:
        SourceError: There are two.
    """
    if len(files) > 1:
        raise SourceError(
            f"{files[0]} and {files[1]} both belong to {name}; expected one. Remove one."
        )
    return files[0] if files else None


def passed_over(folder: Path, files: Collection[Path]) -> str:
    """Count the files of a folder that are not read, by suffix, such as "1 .csv, 2 .txt", without hidden ones."""
    if folder in files:  # a series of planes
        return ""
    others = Counter(
        path.suffix.lower() or "no suffix"
        for path in sorted(folder.iterdir())
        if path.is_file() and path not in files and not path.name.startswith(".")
    )
    return ", ".join(f"{number} {suffix}" for suffix, number in others.most_common(_MOST_SUFFIXES))


def classes_in(folder: Path) -> dict[str, list[Path]]:
    """List the slides of each subfolder, where subfolders are classes; a folder without slides is none."""
    folders = sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))
    slides = {each.name: slides_below(each) for each in folders}
    return {name: found for name, found in slides.items() if found}


def _is_slide(path: Path) -> bool:
    return path.suffix.lower() in sources.SLIDE_SUFFIXES
