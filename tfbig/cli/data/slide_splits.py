"""Slides of `--task segmentation` for training, validation and testing: of a table, or of a folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tfbig.cli import paths
from tfbig.cli.data import cohort, scales, slide_folders, slides_and_masks, splitting
from tfbig.cli.data.background import Masking, outline_rule
from tfbig.cli.data.slides_and_masks import LabelledSlide
from tfbig.cli.settings.tasks import SegmentationSettings
from tfbig.errors import SourceError
from tfbig.sources.table import SPLITS, Row, Table


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
    table: tuple[dict[str, Any], ...] = ()
    decided: Mapping[str, Any] = field(default_factory=dict)

    @property
    def unseen(self) -> tuple[LabelledSlide, ...]:
        """Return the slides of the results: those to test on, or if there are none, those for validation."""
        return self.test or self.val


def load(settings: SegmentationSettings) -> SlideSplits:
    """Return the slides of `--data`, by split.

    Raises:
        SourceError: The table is wrong, or there are too few slides.
        FlagError: Flags about a table are given, and there is none.
    """
    found = _load(settings)
    slides = (*found.train, *found.val, *found.test)
    read = {each.name: scales.scale_of(None, each.image.mpp) for each in slides}
    scales.say(read, settings.test_only)
    return replace(found, table=scales.with_pixels(found.table, read, lambda path: path.name))


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
    if not splitting.is_other_data(settings):
        slides = slides[-1:]
    return SlideSplits((), (), tuple(slides), tuple(failed))


def _of_table(settings: SegmentationSettings, path: Path) -> SlideSplits:
    """Return the slides of a table; in an evaluation those for testing, or if there are none, for validation."""
    table = _read(settings, path)
    wanted: Sequence[str] = (table.tested,) if settings.test_only else SPLITS
    needed = wanted if settings.test_only else ("train", "val")
    slides: dict[str, tuple[LabelledSlide, ...]] = dict.fromkeys(SPLITS, ())
    failed: list[tuple[str, str]] = []
    masking = Masking.of(settings)
    for split in wanted:
        chosen = table.of_split(split, "slides", may_be_empty=split not in needed)
        opened, skipped = slides_and_masks.open_all(
            ((row["slide_id"], row["path"], row["mask"]) for row in chosen),
            masking,
            outline_rule(settings),
        )
        failed += skipped
        slides[split] = tuple(opened)
        if split in needed and not opened:
            raise SourceError(f"{path}: no slide of split '{split}' can be used. {skipped[0][1]}")
    if settings.test_only:
        slides = {"train": (), "val": (), "test": slides[wanted[0]]}
    saved = tuple(_saved(row) for row in table.rows if row["split"] in wanted)
    train, val, test = (slides[split] for split in SPLITS)
    return SlideSplits(train, val, test, tuple(failed), saved)


def _read(settings: SegmentationSettings, path: Path) -> Table:
    """Read the table with the `path`, `mask` and `split` of each slide.

    Raises:
        SourceError: The table is wrong.
    """
    placed = cohort.with_paths(Table.read(path, ("slide_id",)), settings)
    table = placed.with_rows(row | {"mask": _mask(row, placed)} for row in placed.rows)
    masks = [row["mask"] for row in table.rows if row["mask"]]
    slides = [row["path"] for row in table.rows if row["path"]]
    slide_folders.say_unused_masks(slides, {*masks}, slides_and_masks.OF_MASKS)
    if settings.confine:
        table.check_inside(masks, *([settings.slides] if settings.slides else []))
    return cohort.with_splits(table, settings)


def _mask(row: Row, table: Table) -> Path | None:
    """Find the mask of a row: that of its cell, else that beside the slide, or None.

    Raises:
        SourceError: There is no such file.
    """
    if not row.get("mask"):
        return None if row["path"] is None else slides_and_masks.mask_of(row["path"])
    path = table.file(row["mask"])
    if not path.is_file():
        raise SourceError(
            f"{row.place}: no such mask {row['mask']} of slide {row['slide_id']}. Correct the path, or leave the "
            "column empty to compute the labels from the slide."
        )
    return path


def _saved(row: Row) -> dict[str, Any]:
    """A row as a run saves it, with absolute paths."""
    names = ("path", "mask")
    files = {name: "" if row[name] is None else str(row[name].resolve()) for name in names}
    return {"slide_id": row["slide_id"], "split": row["split"], **files}
