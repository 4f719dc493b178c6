"""TCGA-PRAD: prostatectomies with ISUP grades."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from tfbig.cli.data import tcga_slides
from tfbig.cli.data.collection import Collection, Recipe
from tfbig.cli.data.collection_tables import CollectionTable, Found, first_of, read_rows, shortened
from tfbig.cli.data.gleason_grades import ISUP_CLASSES, grade_of, isup
from tfbig.sources.names import title_of


def read(folder: Path, seed: int) -> Found:
    """Read ISUP grades; one slide of each patient, drawn by the seed, is for testing.

    Grades are those of `tcga_prad_test.csv` by slide, or else Gleason patterns of `clinical.tsv` by patient.
    """
    found, table = Found(), CollectionTable(ISUP_CLASSES)
    by_slide = _grades_by_slide(folder)
    by_case = {} if by_slide else _grades_by_case(folder)
    of_case: dict[str, list[tuple[Path, int]]] = {}
    without: list[str] = []
    for slide in tcga_slides.slides_of(folder, diagnostic=True):
        grade = by_slide.get(title_of(slide.path), by_case.get(slide.case))
        if grade is None:
            without.append(slide.path.name)
        else:
            of_case.setdefault(slide.case, []).append((slide.path, grade))
    rng = np.random.default_rng(seed)
    for case, choices in sorted(of_case.items()):
        path, grade = choices[rng.integers(len(choices))]
        table.add(case, path.stem, grade, path, "test")
    file = "tcga_prad_test.csv" if by_slide else "clinical.tsv"
    found.missing += shortened([f"{file}: grade of {name}" for name in without], "slides")
    several = sum(len(choices) > 1 for choices in of_case.values())
    found.notes.append(
        f"one slide of each patient is tested; of {several} patients with several it is drawn with seed {seed}"
    )
    if not by_slide:
        found.notes.append(
            "the paper also leaves out 5 slides without tumour, which a pathologist found; their list is not in "
            "clinical.tsv"
        )
    found.tables = [table]
    return found


def _grades_by_slide(folder: Path) -> dict[str, int]:
    """Read the ISUP grades of a table with columns `slide_id` and `label`, as that of the Big-Layers code."""
    file = first_of(folder, "tcga_prad*.csv")
    if file is None:
        return {}
    rows = read_rows(file, {"slide": ("slide_id",), "grade": ("label",)})
    return {
        title_of(row["slide"]): grade_of(row["grade"], file, n)
        for n, row in enumerate(rows, start=2)
    }


def _grades_by_case(folder: Path) -> dict[str, int]:
    """Read the ISUP grades of `clinical.tsv` of GDC; a patient has a line for each diagnosis and treatment."""
    names = {
        key: (old, new)
        for key, old, new in (
            ("case", "case_submitter_id", "cases.submitter_id"),
            ("first", "primary_gleason_grade", "diagnoses.primary_gleason_grade"),
            ("second", "secondary_gleason_grade", "diagnoses.secondary_gleason_grade"),
        )
    }
    grades: dict[str, int] = {}
    for row in read_rows(first_of(folder, "clinical*.tsv") or folder / "clinical.tsv", names):
        patterns = [re.search(r"[1-5]", row[key]) for key in ("first", "second")]
        primary, secondary = (match and int(match[0]) for match in patterns)
        if primary is not None and secondary is not None:
            grades.setdefault(row["case"].upper(), isup(primary, secondary))
    return grades


COLLECTION = Collection(
    about="prostatectomies, ISUP grade (Zuley et al., 2016)",
    expected=(
        "  **/TCGA-*-DX*.svs         diagnostic slides\n"
        "  clinical.tsv              of GDC: case_submitter_id, primary_ and secondary_gleason_grade, or\n"
        "                            cases.submitter_id, diagnoses.primary_ and diagnoses.secondary_gleason_grade\n"
        "  tcga_prad*.csv            optional, slide_id,label: grades by slide, in place of clinical.tsv"
    ),
    read=read,
    recipes=(
        Recipe(
            "test-tcga-prad",
            "external test of a run on PANDA",
            "slides",
            "big-layers-panda-cosine-as-published",
        ),
    ),
)
