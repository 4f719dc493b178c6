"""TCGA-NSCLC: lung, adenocarcinoma or squamous cell carcinoma."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from tfbig.cli.data import tcga_slides
from tfbig.cli.data.collection import Collection, Recipe
from tfbig.cli.data.collection_tables import (
    EIGHTY_TWENTY,
    CollectionTable,
    Found,
    read_rows,
    shortened,
)
from tfbig.cli.data.splits import split_rows

NORMAL_TISSUE = "11"
"""Kind of a sample: solid tissue without tumour."""


def read(folder: Path, seed: int) -> Found:
    """Read LUAD or LUSC from GDC's sample sheet or the folder; 80:20 by patient, as in PatchGD.

    All slides count, diagnostic ones and frozen sections: GDC has 3220 of 1026 patients, the numbers of the paper.
    """
    found, table = Found(), CollectionTable(("LUAD", "LUSC"))
    sheets = sorted(folder.glob("gdc_sample_sheet*.tsv"))
    columns = {"file": ("File Name",), "project": ("Project ID",)}
    projects = {
        row["file"]: row["project"] for sheet in sheets for row in read_rows(sheet, columns)
    }
    kinds: Counter[str] = Counter()
    unknown = []
    for slide in tcga_slides.slides_of(folder):
        folders = slide.path.relative_to(folder).parts[:-1]
        named = (projects.get(slide.path.name, ""), *folders)
        projects_named = (name.upper().removeprefix("TCGA-") for name in named)
        label = next((p for p in projects_named if p in table.classes), None)
        if label is None:
            unknown.append(slide.path.name)
            continue
        table.add(slide.case, slide.path.stem, table.classes.index(label), slide.path)
        kinds[slide.section] += 1
        kinds["of normal tissue"] += slide.sample == NORMAL_TISSUE
    found.missing += shortened(
        [
            f"{name}: neither in a folder LUAD or LUSC nor in gdc_sample_sheet*.tsv"
            for name in unknown
        ],
        "slides",
    )
    rows = split_rows(table.rows, EIGHTY_TWENTY, seed)
    table.rows = [row | {"site": row["case_id"].split("-")[1]} for row in rows]
    diagnostic = kinds["DX"]
    frozen = sum(kinds[section] for section in ("TS", "BS", "MS"))
    found.notes += [
        f"{diagnostic} diagnostic slides (DX) and {frozen} frozen sections (TS, BS, MS; {kinds['of normal tissue']} "
        "are of normal tissue), all labelled with their project, as the paper's 3220 files; to use diagnostic slides "
        "alone, keep only these in the folder",
        f"split 80:20 by patient with seed {seed}, a tenth of the patients of the 80 validates",
        "column site has the hospital (tissue source site) of each case, for --folds 5 --group site",
    ]
    found.tables = [table]
    return found


COLLECTION = Collection(
    about="lung, adenocarcinoma or squamous cell carcinoma",
    expected=(
        "  LUAD/**/TCGA-*.svs        slides, diagnostic (DX) and frozen (TS, BS)\n  LUSC/**/TCGA-*.svs\n"
        "  gdc_sample_sheet*.tsv     optional, in place of the two folders"
    ),
    read=read,
    recipes=(Recipe("patchgd-tcga-nsclc-as-published", "PatchGD", "slides"),),
)
