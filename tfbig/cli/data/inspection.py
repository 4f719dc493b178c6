"""What a folder or a table of images holds, found before a long run: `tfbig doctor DATA`."""

from __future__ import annotations

import hashlib
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from tfbig import sources
from tfbig.cli.data import slide_folders
from tfbig.errors import SourceError, SourceWarning, TfbigError, one_line
from tfbig.sources import names
from tfbig.sources.table import Row, Table
from tfbig.sources.volumes.opening import is_volume
from tfbig.units import counted

SAMPLED: Final = 2**20
"""Bytes at the beginning and at the end of a file by which copies are recognised."""
LABELS: Final = ("mask", "label")
"""Columns of images whose samples are numbers of classes."""
NAME: Final = "slide_id"
"""Column of names of slides."""
FOLDERS: Final = ("bag", "image", "path")
"""Beginnings of columns whose cells may name a folder, of tiles or of a series of planes."""
TABLES: Final = ("slides.csv", "images.csv", "scenes.csv", "volumes.csv", "bags.csv")
"""Tables that a folder may hold."""
SHOWN: Final = 5
"""Most files that are named for one finding."""
MOST_CLASSES: Final = 256
"""Most numbers of classes in masks that are counted; more are instances."""


@dataclass
class Findings:
    """The contents of a folder or a table.

    Attributes:
        facts: Lines about the images.
        faults: Lines about what will fail or mislead a run.
    """

    facts: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Item:
    """A file of a row.

    Attributes:
        path: The file.
        column: Column of the table that names it; "" in a folder.
        split: Its split, or "".
    """

    path: Path
    column: str = ""
    split: str = ""

    @property
    def is_label(self) -> bool:
        """True if its samples are numbers of classes."""
        return self.column in LABELS or self.path.parent.name == slide_folders.MASKS


@dataclass(frozen=True)
class Image:
    """The properties that an image states.

    Attributes:
        item: Where it is.
        shape: Its extents, and its channels.
        dtype: Dtype of its samples.
        mpp: Micrometres per pixel of a slide, or None.
        magnification: Magnification of a slide, or None.
        classes: Numbers of pixels by class number, of labels.
    """

    item: Item
    shape: tuple[int, ...]
    dtype: str
    mpp: tuple[float, float] | None = None
    magnification: float | None = None
    classes: Mapping[int, int] = field(default_factory=dict)


def inspect(data: Path) -> Findings:
    """Open every image of a folder or a table, read the masks, and return what was found; nothing is written.

    The columns of a table name files next to it.

    Raises:
        SourceError: There is no such file or folder, or no image in it.
    """
    found = Findings()
    items = list(_items(data, found))
    if not items:
        raise SourceError(
            f"{data}: holds no image, and names none. Give a folder or a table of images."
        )
    images = _opened(items, found)
    _say_images([image for image in images if not image.item.is_label], found)
    _say_labels([image for image in images if image.item.is_label], found)
    _say_copies(items, found)
    return found


def _items(data: Path, found: Findings) -> Iterator[Item]:
    """Yield the files of a folder or of a table."""
    table = data
    if data.is_dir():
        table = next((data / name for name in TABLES if (data / name).is_file()), data)
    if table.is_dir():
        files = slide_folders.slides_in(data) or [p for p in sorted(data.iterdir()) if is_volume(p)]
        masks = slide_folders.masks_of(slide_folders.without_masks(files), sources.SLIDE_SUFFIXES)
        if passed := slide_folders.passed_over(data, files):
            found.facts.append(f"passed over in the folder: {passed}")
        yield from (Item(path) for path in files)
        yield from (Item(path, "mask") for path in masks.values() if path not in files)
        return
    read = Table.read(table)
    _say_rows(read, found)
    yield from _files_of_rows(read, found)


def _files_of_rows(table: Table, found: Findings) -> Iterator[Item]:
    """Yield the files that the columns of a table name, and say which are missing or may be two."""
    there = names.files(slide_folders.slides_below(table.folder), table.folder)
    images, have_labels = list[Path](), False
    for column in table.columns:
        if "path" in table.columns and column == NAME:  # slides are found by their path
            continue
        placed: list[tuple[Row, Path | None]] = []
        for row in (row for row in table.rows if row[column]):
            files = _files_of(row[column], column, table, there)
            if len(files) > 1:
                found.faults.append(f"{row.place}: {row[column]} may be {files[0]} or {files[1]}")
            placed.append((row, files[0] if files else None))
        if not any(path for _, path in placed):
            continue
        if column in LABELS:
            have_labels = True
        else:
            images += [path for _, path in placed if path]
        missing = [row[column] for row, path in placed if path is None]
        if missing:
            found.faults.append(
                f"column {column}: {len(missing)} of {counted(len(placed), 'file')} not found: {_some(missing)}"
            )
        yield from (Item(path, column, row.get("split", "")) for row, path in placed if path)
    if not have_labels:
        masks = slide_folders.masks_of(images, sources.SLIDE_SUFFIXES)
        yield from (Item(path, LABELS[0]) for path in masks.values())


def _files_of(name: str, column: str, table: Table, there: names.Names[str]) -> list[Path]:
    """Find the files that a cell may name, by its path or as a slide by its name."""
    may_be_folder = column.startswith(FOLDERS)
    found = [
        path
        for path in table.places(name)
        if path.is_file() or (path.is_dir() and (may_be_folder or path.suffix))
    ]
    match = there.match(name) if column == NAME and not found else None
    return [Path(match.things[0])] if match and len(match.things) == 1 else found


def _say_rows(table: Table, found: Findings) -> None:
    """Say how many rows are in each split, of which classes, and which cases are in several splits."""
    rows = table.rows
    found.facts.append(f"table: {counted(len(rows), 'row')}, columns {', '.join(table.columns)}")
    if "split" in table.columns:
        for split, number in Counter(row["split"] or "no split" for row in rows).items():
            own = Counter(
                row.get("label", "") for row in rows if (row["split"] or "no split") == split
            )
            classes = ", ".join(f"{n} {name}" for name, n in own.most_common(SHOWN) if name)
            short = classes and len(own) <= MOST_CLASSES and not any(Path(k).suffix for k in own)
            found.facts.append(
                f"{split}: {counted(number, 'row')}{f' ({classes})' if short else ''}"
            )
        try:
            table.check_splits()
            table.check_cases()
        except SourceError as error:
            found.faults.append(str(error))


def _opened(items: Sequence[Item], found: Findings) -> list[Image]:
    """Open each file once, and say which cannot be read, and what readers warn of."""
    images, failed = [], []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", SourceWarning)
        for item in {item.path: item for item in items}.values():
            try:
                images.append(_image(item))
            except (TfbigError, OSError, ValueError) as error:
                failed.append(one_line(error))
    found.faults += failed
    found.faults += dict.fromkeys(
        one_line(each.message) for each in caught if issubclass(each.category, SourceWarning)
    )
    return images


def _image(item: Item) -> Image:
    """Open an image, and note what its file says of it; labels are read."""
    if is_volume(item.path):
        volume = sources.open_volume(item.path)
        classes = _counted(volume) if item.is_label else {}
        return Image(item, volume.shape, str(volume.dtype), classes=classes)
    if item.path.is_dir() or item.path.suffix.lower() in slide_folders.BAG_SUFFIXES - {".npy"}:
        bag = sources.open_bag(item.path)
        return Image(item, bag.shape, str(bag.dtype))
    if item.path.suffix.lower() not in sources.SLIDE_SUFFIXES:
        raise SourceError(
            f"{item.path}: has the unknown suffix '{item.path.suffix}'. Convert it, or correct the table."
        )
    slide = sources.open_slide(item.path, reader=sources.LABELS if item.is_label else None)
    try:
        if item.is_label:
            return Image(item, slide.shape, str(slide.dtype), classes=_counted(slide.level()))
        slide.read((0, 1), (0, 1))  # the header may be all that is there
        return Image(item, slide.shape, str(slide.dtype), slide.mpp, slide.magnification)
    finally:
        slide.close()


def _counted(source: sources.Source) -> dict[int, int]:
    """Count the samples of each value, of labels; at most `MOST_CLASSES` values and one more."""
    total: Counter[int] = Counter()
    step = 1 if len(source.shape) == 4 else 512
    for start in range(0, source.shape[0], step):
        values, number = np.unique(
            source.read(start, min(start + step, source.shape[0])), return_counts=True
        )
        total.update(dict(zip(map(int, values.tolist()), number.tolist(), strict=True)))
        if len(total) > MOST_CLASSES:
            break
    return dict(total)


def _say_images(images: Sequence[Image], found: Findings) -> None:
    """Say sizes, channels, dtypes and scales of images, and where those of one set differ."""
    if not images:
        return
    sizes = sorted((image.shape[:-1] for image in images), key=lambda size: float(np.prod(size)))
    words = [" x ".join(map(str, size)) for size in (sizes[0], sizes[-1])]
    found.facts.append(
        f"{counted(len(images), 'image')} of {' to '.join(dict.fromkeys(words))} pixels"
    )
    kinds = Counter(f"{counted(image.shape[-1], 'channel')} of {image.dtype}" for image in images)
    (found.facts if len(kinds) == 1 else found.faults).append(
        "samples: "
        + ", ".join(f"{kind} in {counted(n, 'image')}" for kind, n in kinds.most_common())
    )
    known = sorted(image.mpp[0] for image in images if image.mpp)
    if known:
        without = len(images) - len(known)
        words = list(dict.fromkeys(f"{mpp:.4g}" for mpp in (known[0], known[-1])))
        line = f"pixels of {' to '.join(words)} um"
        if without:
            line += f", unknown in {counted(without, 'image')}: " + _some(
                image.item.path.name for image in images if not image.mpp
            )
        differ = known[-1] > 1.01 * known[0]
        (found.faults if differ or without else found.facts).append(
            line + ("; read them at one resolution, as by --mpp" if differ else "")
        )


def _say_labels(labels: Sequence[Image], found: Findings) -> None:
    """Say which classes the labels have, and which labels have none or are of another size than the rest."""
    if not labels:
        return
    total: Counter[int] = Counter()
    for label in labels:
        total.update(label.classes)
    pixels = sum(total.values())
    if len(total) > MOST_CLASSES:
        found.facts.append(
            f"{counted(len(labels), 'mask')} with more than {MOST_CLASSES} numbers: instances"
        )
        return
    shares = ", ".join(f"{value} {total[value] / pixels:.1%}" for value in sorted(total)[:20])
    found.facts.append(f"{counted(len(labels), 'mask')}: {shares}")
    single = [label.item.path.name for label in labels if len(label.classes) == 1]
    if single:
        verb = "has" if len(single) == 1 else "have"
        found.faults.append(
            f"{counted(len(single), 'mask')} {verb} one class only: {_some(single)}"
        )


def _say_copies(items: Sequence[Item], found: Findings) -> None:
    """Say which files are copies of each other under two names, or in two splits."""
    by_content: dict[tuple[int, str], list[Item]] = {}
    by_path: dict[Path, set[str]] = {}
    for item in items:
        if not item.is_label and item.path.is_file():
            by_path.setdefault(item.path.resolve(), set()).add(item.split)
            by_content.setdefault(_digest(item.path), []).append(item)
    for path, own in by_path.items():
        if len(own) > 1:
            found.faults.append(f"{path.name} is in the splits {' and '.join(sorted(own))}")
    for same in by_content.values():
        different = dict.fromkeys(item.path.resolve() for item in same)
        if len(different) > 1:
            across = len({item.split for item in same}) > 1
            found.faults.append(
                f"copies of one file{' in several splits' if across else ''}: "
                f"{_some(path.name for path in different)}"
            )


def _digest(path: Path) -> tuple[int, str]:
    """The size of a file, and a checksum of its beginning and end."""
    size = path.stat().st_size
    with path.open("rb") as file:
        data = file.read(SAMPLED)
        file.seek(max(size - SAMPLED, 0))
        data += file.read(SAMPLED)
    return size, hashlib.sha256(data).hexdigest()


def _some(found: Any) -> str:
    """Name some, and say how many more there are."""
    listed = list(found)
    more = f" and {len(listed) - SHOWN} more" if len(listed) > SHOWN else ""
    return ", ".join(map(str, listed[:SHOWN])) + more
