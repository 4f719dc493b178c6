"""PANDA: prostate biopsies with ISUP grades."""

from __future__ import annotations

from pathlib import Path

from tfbig.cli.data.collection import Collection, Recipe
from tfbig.cli.data.collection_tables import (
    EIGHTY_TWENTY,
    CollectionTable,
    Found,
    read_rows,
    shortened,
)
from tfbig.cli.data.gleason_grades import ISUP_CLASSES, grade_of
from tfbig.cli.data.splits import split_rows
from tfbig.sources.names import title_of
from tfbig.sources.table import SPLITS
from tfbig.units import counted


def read(folder: Path, seed: int) -> Found:
    """Read `train.csv`; splits of Song et al. (2024) in `splits/`, else 80:10:10, and 80:20 for PatchGD."""
    found, slides, all_slides = (
        Found(),
        CollectionTable(ISUP_CLASSES),
        CollectionTable(ISUP_CLASSES, "patchgd"),
    )
    file = folder / "train.csv"
    rows = read_rows(file, {"slide": ("image_id",), "grade": ("isup_grade",)})
    split_of_slide = _splits(folder / "splits")
    images = {path.stem: path for path in (folder / "train_images").glob("*.tiff")}
    absent = []
    for line, row in enumerate(rows, start=2):
        name, grade = row["slide"], grade_of(row["grade"], file, line)
        if name not in images:
            absent.append(f"train_images/{name}.tiff")
            continue
        all_slides.add(name, name, grade, images[name])
        if not split_of_slide or name in split_of_slide:
            slides.add(name, name, grade, images[name], split_of_slide.get(name, ""))
    found.missing += shortened(absent, "slides of train.csv")
    all_slides.rows = split_rows(all_slides.rows, EIGHTY_TWENTY, seed)
    found.tables = [slides, all_slides]
    left = len(all_slides.rows) - len(slides.rows)
    if split_of_slide:
        found.notes.append(
            f"slides.csv: split of splits/, without {counted(left, 'slide')} that it leaves out"
        )
    else:
        slides.rows = split_rows(slides.rows, (0.8, 0.1, 0.1), seed)
        found.notes.append(
            f"slides.csv: no splits/{{train,val,test}}.csv, so split 80:10:10 by label, seed {seed}; the paper uses "
            "those of Song et al. (mahmoodlab/PANTHER, src/splits/classification/panda), without 1061 noisy slides"
        )
    found.notes.append(
        f"patchgd.csv: split 80:20 by label with seed {seed}, a tenth of the 80 validates"
    )
    found.notes.append(
        f"every training reads all slides first to find their tiles; tfbig tile {folder / 'train_images'} --out TILES "
        "--mpp 0.5 --tissue grey-tiles does it once, for --coords TILES"
    )
    return found


def _splits(folder: Path) -> dict[str, str]:
    """Read the split of each slide in the files `train.csv`, `val.csv` and `test.csv`."""
    split_of_slide: dict[str, str] = {}
    for split in SPLITS:
        if (folder / f"{split}.csv").exists():
            rows = read_rows(folder / f"{split}.csv", {"slide": ("slide_id", "FILENAME")})
            names = (title_of(row["slide"]) for row in rows)
            split_of_slide |= dict.fromkeys(names, split)
    return split_of_slide


COLLECTION = Collection(
    about="prostate biopsies, ISUP grade 0 to 5 (Bulten et al., 2022)",
    expected=(
        "  train.csv                 image_id,data_provider,isup_grade,gleason_score\n"
        "  train_images/ID.tiff      10616 slides\n"
        "  splits/{train,val,test}.csv   optional, slide_id: of Song et al. (2024)"
    ),
    read=read,
    recipes=(
        Recipe("big-layers-panda-cosine-as-published", "Big-Layers, first setting", "slides"),
        Recipe(
            "big-layers-panda-cosine-as-coded",
            "Big-Layers, first setting as its code has it",
            "slides",
        ),
        Recipe("big-layers-panda-exponential-as-published", "Big-Layers, second setting", "slides"),
        Recipe("big-layers-panda-frozen", "Big-Layers, baseline with a frozen encoder", "slides"),
        Recipe("patchgd-panda-as-published", "PatchGD", "patchgd"),
        Recipe("whole-slides-panda", "whole slides, streamed without background", "slides"),
        Recipe("features-panda", "Big-Layers, baseline on features", "bags"),
    ),
)
