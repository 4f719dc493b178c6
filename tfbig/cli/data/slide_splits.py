"""Slides of `--task segmentation` for training, validation and testing: of a table, or of a folder."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tfbig.cli import paths
from tfbig.cli.data import cohort, drawn_splits, scales, slide_folders, slides_and_masks, splits
from tfbig.cli.data.background import Masking, outline_rule
from tfbig.cli.data.slides_and_masks import LabelledSlide
from tfbig.cli.data.splits import SPLITS, Row
from tfbig.cli.settings.tasks import SegmentationSettings
from tfbig.errors import SourceError


@dataclass(frozen=True)
class SlideSplits:
    """Slides of a run.

    Attributes:
        train: Slides to train on; none in an evaluation.
        val: Slides for validation; none in an evaluation.
        test: Slides to test on; none without a table.
        failed: `(name, reason)` of slides that were skipped.
        table: Rows that say which slide is in which split; none without a table.
        decided: Settings that the data decide: none.
    """

    train: tuple[LabelledSlide, ...]
    val: tuple[LabelledSlide, ...]
    test: tuple[LabelledSlide, ...]
    failed: tuple[tuple[str, str], ...]
    table: tuple[Row, ...] = ()
    decided: Mapping[str, Any] = field(default_factory=dict)

    @property
    def unseen(self) -> tuple[LabelledSlide, ...]:
        """Return the slides of the results: those to test on, or if there are none, those for validation."""
        return self.test or self.val


def load(settings: SegmentationSettings) -> SlideSplits:
    """Return the slides of `--data`, by split.

    Args:
        settings: Settings of the run.

    Raises:
        SourceError: The table is wrong, or there are too few slides.
        FlagError: Flags about a table are given, and there is none.
    """
    found = _load(settings)
    pixels = {each.name: each.image.mpp for each in (*found.train, *found.val, *found.test)}
    said = scales.lines({name: scales.scale_of(None, mpp) for name, mpp in pixels.items()})
    if settings.test_only:
        said += scales.against_run(pixels, scales.trained_pixels(settings.test_only))
    for line in said:
        print(line, file=sys.stderr)
    sizes = [pixels.get(Path(row["path"]).name) or ("", "") for row in found.table]
    rows = zip(found.table, sizes, strict=True)
    table = tuple(row | dict(zip(scales.PIXELS, size, strict=True)) for row, size in rows)
    return replace(found, table=table)


def _load(settings: SegmentationSettings) -> SlideSplits:
    table = Path(settings.data or "") / scales.TABLE
    if table.exists():
        return _of_table(settings, table)
    for name in ("slides", "splits", "folds"):
        if getattr(settings, name):
            raise paths.FlagError(f"--{name} needs the table {table}, which does not exist.")
    return _evaluated(settings) if settings.test_only else _of_folder(settings)


def _of_folder(settings: SegmentationSettings) -> SlideSplits:
    """Return all slides of the folder but the last for training, and that one for validation."""
    (*train, last), failed = slides_and_masks.open_slides(
        settings.data or "", 2, Masking.of(settings), outline_rule(settings)
    )
    return SlideSplits(tuple(train), (last,), (), tuple(failed))


def _evaluated(settings: SegmentationSettings) -> SlideSplits:
    """Return the slides of the folder for testing: of the one that the run was trained on, the last."""
    slides, failed = slides_and_masks.open_slides(
        settings.data or "", masking=Masking.of(settings), outlines=outline_rule(settings)
    )
    if not drawn_splits.is_other_data(settings):
        slides = slides[-1:]
    return SlideSplits((), (), tuple(slides), tuple(failed))


def _of_table(settings: SegmentationSettings, table: Path) -> SlideSplits:
    """Return the slides of a table; in an evaluation those for testing, or if there are none, for validation."""
    rows = _rows(settings, table)
    wanted: Sequence[str] = SPLITS
    if settings.test_only:
        wanted = ("test",) if any(row["split"] == "test" for row in rows) else ("val",)
    needed = wanted if settings.test_only else ("train", "val")
    slides: dict[str, tuple[LabelledSlide, ...]] = dict.fromkeys(SPLITS, ())
    failed: list[tuple[str, str]] = []
    masking = Masking.of(settings)
    for split in wanted:
        chosen = splits.of_split(rows, split, table) if split in needed else _of_split(rows, split)
        opened, skipped = slides_and_masks.open_all(
            ((row["slide_id"], row["path"], row["mask"]) for row in chosen),
            masking,
            outline_rule(settings),
        )
        failed += skipped
        slides[split] = tuple(opened)
        if split in needed and not opened:
            raise SourceError(f"{table}: no slide of split '{split}' can be used. {skipped[0][1]}")
    if settings.test_only:
        slides = {"train": (), "val": (), "test": slides[wanted[0]]}
    saved = tuple(_saved(row) for row in rows if row["split"] in wanted)
    train, val, test = (slides[split] for split in SPLITS)
    return SlideSplits(train, val, test, tuple(failed), saved)


def _rows(settings: SegmentationSettings, table: Path) -> list[Row]:
    """Return the rows of the table with `path`, `mask` and `split`.

    Raises:
        SourceError: The table is wrong.
    """
    rows = splits.read_table(table, ("slide_id",))
    placed = cohort.with_paths([{"label": "", **row} for row in rows], table, settings)
    placed = [
        row | {"mask": _mask(row, number, table)} for number, row in enumerate(placed, start=2)
    ]
    _say_unused_masks(placed)
    if settings.confine:
        folders = [folder for folder in (settings.slides, table.parent) if folder]
        splits.check_inside((row["mask"] for row in placed if row["mask"]), folders)
    return cohort.with_splits(placed, settings)


def _mask(row: Row, number: int, table: Path) -> Path | None:
    """Return the mask of a row: its `mask`, as it is or relative to the table, else that beside the slide, or None.

    Raises:
        SourceError: There is no such file.
    """
    if not row.get("mask"):
        return None if row["path"] is None else slides_and_masks.mask_of(row["path"])
    for path in (Path(row["mask"]), table.parent / row["mask"]):
        if path.is_file():
            return path
    raise SourceError(
        f"{table}: line {number}: no such mask {row['mask']} of slide {row['slide_id']}. Correct the path, or leave "
        "the column empty to compute the labels from the slide."
    )


def _say_unused_masks(rows: Sequence[Row]) -> None:
    """Say which masks beside the slides of a table are of none of them."""
    slides = [row["path"] for row in rows if row["path"]]
    used = {row["mask"] for row in rows if row["mask"]}
    slide_folders.say_unused_masks(slides, used, slides_and_masks.OF_MASKS)


def _of_split(rows: Sequence[Row], split: str) -> list[Row]:
    return [row for row in rows if row["split"] == split]


def _saved(row: Row) -> Row:
    """Return a row as a run saves it, with absolute paths."""
    names = ("path", "mask")
    files = {name: "" if row[name] is None else str(row[name].resolve()) for name in names}
    return {"slide_id": row["slide_id"], "split": row["split"], **files}
