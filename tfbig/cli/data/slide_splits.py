"""Slides of `--task segmentation` for training, validation and testing: of a table, or of a folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tfbig.cli import paths
from tfbig.cli.data import cohort, run_data, scales, slide_folders, slides_and_masks, splitting
from tfbig.cli.data.background import Masking, outline_rule
from tfbig.cli.data.run_data import Data, Opened
from tfbig.cli.settings.tasks import SegmentationSettings
from tfbig.errors import SourceError
from tfbig.sources.names import title_of
from tfbig.sources.table import Row, Table


def load(settings: SegmentationSettings) -> Data:
    """Open the slides of `--data`, by split.

    Raises:
        SourceError: The table is wrong, or there are too few slides.
        FlagError: Flags about a table are given, and there is none.
    """
    found = _load(settings)
    read = {each.name: scales.scale_of(None, each.image.mpp) for each in found.every}
    scales.say(read, settings.test_only, scales.WHOLE_SLIDES)
    return replace(
        found, table=scales.with_pixels(found.table, read, lambda row: Path(row["path"]).name)
    )


def _load(settings: SegmentationSettings) -> Data:
    table = Path(settings.data or "") / scales.TABLE
    if table.exists():
        return _of_table(settings, table)
    for name in ("slides", "splits", "folds"):
        if getattr(settings, name):
            raise paths.FlagError(f"--{name} needs the table {table}, which does not exist.")
    return _of_folder(settings)


def _of_folder(settings: SegmentationSettings) -> Data:
    """Return all slides of the folder but the last for training, and that one for validation.

    In an evaluation, all are tested; of the folder that the run was trained on, the last.
    """
    least = 1 if settings.test_only else 2
    found = slides_and_masks.open_slides(
        settings.data or "", least, Masking.of(settings), outline_rule(settings)
    )
    if settings.test_only and splitting.is_other_data(settings):
        return Data.of([found], table=_rows_of({"test": found}))
    last = replace(found, items=found.items[-1:], rows=found.rows[-1:])
    if settings.test_only:
        return Data.of([last], table=_rows_of({"test": last}))
    others = replace(found, items=found.items[:-1], rows=found.rows[:-1])
    return Data.of([others, last, Opened()], table=_rows_of({"train": others, "val": last}))


def _rows_of(parts: Mapping[str, Opened]) -> tuple[dict[str, Any], ...]:
    """The rows of the slides of a folder by split, as a run on a table saves them."""
    return tuple(
        _saved(row | {"slide_id": title_of(row["path"]), "split": split})
        for split, part in parts.items()
        for row in part.rows
    )


def _of_table(settings: SegmentationSettings, path: Path) -> Data:
    """Open the slides of a table; in an evaluation those for testing, or if there are none, for validation."""
    table = _read(settings, path)
    masking = Masking.of(settings)
    if masking is not None:
        masking.check_own(row["path"] for row in table.rows if row["path"])
    open_row = slides_and_masks.opener(masking, outline_rule(settings))
    sets = run_data.open_all(table, open_row, settings, "slide_id", "slides")
    rows = run_data.rows_of_run(table, bool(settings.test_only))
    return Data.of(sets, table=tuple(map(_saved, rows)))


def _read(settings: SegmentationSettings, path: Path) -> Table:
    """Read the table with the `path`, `mask` and `split` of each slide.

    Raises:
        SourceError: The table is wrong.
    """
    placed = cohort.with_paths(Table.read(path, ("slide_id",)), settings)
    table = placed.with_rows(row | {"mask": _mask(row, placed)} for row in placed.rows)
    found = ((row, old) for row, old in zip(table.rows, placed.rows, strict=True) if row["mask"])
    slide_folders.check_own(
        {row["path"]: row["mask"] for row, old in found if not old.get("mask")}, "mask"
    )
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
