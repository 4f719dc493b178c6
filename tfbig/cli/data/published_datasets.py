"""Public collections of slides as they are downloaded: expected files, labels and splits.

Nothing is downloaded here. Each reader returns a table of the slides in a folder, and what is missing.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from tfbig import SourceError, sources
from tfbig.cli.data.splits import split_rows
from tfbig.cli.settings import choices

TCGA = re.compile(r"(TCGA-\w\w-\w{4})-\d\d[A-Z]-\d\d-(DX|TS|BS)\w*", re.IGNORECASE)
"""Barcode of a slide: the case, and whether it is a diagnostic (DX) or a frozen section (TS, BS)."""
PN_STAGES = ("negative", "itc", "micro", "macro")
ISUP = {(3, 3): 1, (3, 4): 2, (4, 3): 3}
"""ISUP grades of primary and secondary Gleason pattern; a sum of 8 is 4, of 9 or 10 is 5."""


@dataclass
class Table:
    """Slides of a collection.

    Attributes:
        classes: Names of the classes, by number.
        rows: Dicts of `case_id`, `slide_id`, `label`, `split` and `path`.
        missing: Files and entries that are missing.
    """

    classes: tuple[str, ...]
    rows: list[dict[str, str]] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    def add(self, case: str, slide: str, label: int | str, path: Path, split: str = "") -> None:
        """Add a slide."""
        row = {"case_id": case, "slide_id": slide, "label": str(label)}
        self.rows.append(row | {"split": split, "path": str(path)})


@dataclass(frozen=True)
class Collection:
    """A collection and its reader.

    Attributes:
        about: Description with its source.
        expected: Files that the folder should hold.
        read: Function from folder and seed to a `Table`.
    """

    about: str
    expected: str
    read: Callable[[Path, int], Table]


def read(name: str, folder: str | Path, seed: int = 0) -> Table:
    """Return the slides of a collection.

    Args:
        name: One of `COLLECTIONS`.
        folder: Folder of the downloaded files.
        seed: Random seed of splits that are drawn.

    Raises:
        SourceError: A table with labels is missing or has other columns.
    """
    if not Path(folder).is_dir():
        raise SourceError(f"{folder}: no such folder. Expected:\n{COLLECTIONS[name].expected}")
    return COLLECTIONS[name].read(Path(folder), seed)


def _panda(folder: Path, seed: int) -> Table:
    """Read labels of `train.csv`; splits of Song et al. (2024) in `splits/`, else 80:10:10 by label."""
    table = Table(tuple(f"ISUP {grade}" for grade in range(6)))
    rows = _csv(folder / "train.csv", ("image_id", "isup_grade"))
    split_of_slide = _splits(folder / "splits")
    images = {path.stem: path for path in (folder / "train_images").glob("*.tiff")}
    for row in rows:
        name = row["image_id"]
        if split_of_slide and name not in split_of_slide:
            continue  # noisy slides that they excluded
        if name in images:
            table.add(
                name,
                name,
                _grade(row["isup_grade"], folder),
                images[name],
                split_of_slide.get(name, ""),
            )
        else:
            table.missing.append(f"train_images/{name}.tiff")
    if not split_of_slide:
        table.rows = split_rows(table.rows, (0.8, 0.1, 0.1), seed)
    return table


def _camelyon16(folder: Path, seed: int) -> Table:
    """Read labels from the names of training slides, and from `reference.csv` for test slides."""
    table = Table(("normal", "tumour"))
    slides = _by_stem(folder, r"(normal|tumor|test)_\d+", ".tif")
    reference = next(iter(sorted(folder.rglob("reference.csv"))), None)
    is_tumour = {}
    if reference is None:
        table.missing.append("reference.csv (test_001,Tumor,...): labels of the test slides")
    else:
        with reference.open(newline="", encoding="utf-8-sig") as file:
            rows = [row for row in csv.reader(file) if len(row) > 1]
        is_tumour = {Path(row[0].strip()).stem: row[1].strip().lower() == "tumor" for row in rows}
    for name, path in slides.items():
        kind = name.split("_")[0]
        if kind != "test":
            table.add(name, name, int(kind == "tumor"), path, "train")
        elif name in is_tumour:
            table.add(name, name, int(is_tumour[name]), path, "test")
    for kind, count in (("normal", 159), ("tumor", 111), ("test", 129)):
        count_there = sum(name.startswith(kind) for name in slides)
        if count_there < count:
            table.missing.append(f"{kind}_*.tif: {count_there} of {count} slides")
    return table


def _camelyon17(folder: Path, seed: int) -> Table:
    """Read slide labels of `stages.csv`; 50 slides of the training centres, drawn by the seed, are for validation."""
    table = Table(("negative", "metastasis"))
    slides = _by_stem(folder, r"patient_\d+_node_\d+", ".tif")
    stages = next(iter(sorted(folder.rglob("stages*.csv"))), folder / "stages.csv")
    for row in _csv(stages, ("patient", "stage")):
        name = Path(row["patient"]).stem
        if "_node_" not in name:
            continue  # the stage of the patient
        stage = row["stage"].strip().lower()
        if stage not in PN_STAGES:
            raise SourceError(
                f"{stages}: {name} has stage '{stage}'; expected one of {', '.join(PN_STAGES)}."
            )
        if name not in slides:
            table.missing.append(f"{name}.tif")
            continue
        patient = name.split("_node_")[0]
        split = "train" if int(patient.split("_")[1]) < 100 else "test"
        table.add(patient, name, int(stage != "negative"), slides[name], split)
    training = [row for row in table.rows if row["split"] == "train"]
    drawn = np.random.default_rng(seed).permutation(len(training))[: min(50, len(training) // 4)]
    for place in drawn:
        training[place]["split"] = "val"
    return table


def _tcga_prad(folder: Path, seed: int) -> Table:
    """Read ISUP grades from `clinical.tsv`; one slide of each patient, drawn by the seed, is for testing."""
    table = Table(tuple(f"ISUP {grade}" for grade in range(6)))
    columns = ("case_submitter_id", "primary_gleason_grade", "secondary_gleason_grade")
    grades = {}
    for row in _csv(folder / "clinical.tsv", columns, "\t"):
        patterns = [re.search(r"\d", row[column] or "") for column in columns[1:]]
        primary, secondary = (match and int(match[0]) for match in patterns)
        if primary is not None and secondary is not None:
            grades[row[columns[0]].upper()] = isup(primary, secondary)
    of_case: dict[str, list[Path]] = {}
    for case, path in _tcga(folder):
        of_case.setdefault(case, []).append(path)
    rng = np.random.default_rng(seed)
    for case, paths in sorted(of_case.items()):
        path = paths[rng.integers(len(paths))]
        if case in grades:
            table.add(case, path.stem, grades[case], path, "test")
        else:
            table.missing.append(f"clinical.tsv: Gleason patterns of {case}")
    if not of_case:
        table.missing.append("TCGA-*-DX*.svs: diagnostic slides")
    return table


def _tcga_nsclc(folder: Path, seed: int) -> Table:
    """Read LUAD or LUSC from GDC's sample sheet or the folder; 80:20 by patient, as in PatchGD."""
    table = Table(("LUAD", "LUSC"))
    kinds = {}
    for sheet in sorted(folder.glob("gdc_sample_sheet*.tsv")):
        for row in _csv(sheet, ("File Name", "Project ID"), "\t"):
            kinds[row["File Name"]] = row["Project ID"].strip().upper().removeprefix("TCGA-")
    for case, path in _tcga(folder):
        inside = (part.upper().removeprefix("TCGA-") for part in path.relative_to(folder).parts)
        kind = kinds.get(path.name) or next((p for p in inside if p in table.classes), None)
        if kind in table.classes:
            table.add(case, path.stem, table.classes.index(kind), path)
        else:
            table.missing.append(
                f"{path.name}: neither in a folder LUAD or LUSC nor in gdc_sample_sheet*.tsv"
            )
    if not table.rows:
        table.missing.append("LUAD/ and LUSC/ with TCGA-*-DX*.svs: diagnostic slides")
    table.rows = split_rows(table.rows, (0.8, 0.0, 0.2), seed)
    return table


COLLECTIONS = {
    "panda": Collection(
        choices.COLLECTIONS["panda"],
        "  train.csv                 image_id,data_provider,isup_grade,gleason_score\n"
        "  train_images/ID.tiff      10616 slides\n"
        "  splits/{train,val,test}.csv   optional, slide_id: of Song et al. (2024)",
        _panda,
    ),
    "camelyon16": Collection(
        choices.COLLECTIONS["camelyon16"],
        "  **/normal_001.tif         159 slides\n  **/tumor_001.tif          111\n"
        "  **/test_001.tif           129\n  **/reference.csv          test_001,Tumor,...",
        _camelyon16,
    ),
    "camelyon17": Collection(
        choices.COLLECTIONS["camelyon17"],
        "  **/patient_000_node_0.tif 1000 slides\n"
        "  **/stages.csv             patient,stage: patient_000_node_0.tif,negative (itc, micro, macro)",
        _camelyon17,
    ),
    "tcga-prad": Collection(
        choices.COLLECTIONS["tcga-prad"],
        "  **/TCGA-*-DX*.svs         diagnostic slides\n"
        "  clinical.tsv              of GDC: case_submitter_id, primary_ and secondary_gleason_grade",
        _tcga_prad,
    ),
    "tcga-nsclc": Collection(
        choices.COLLECTIONS["tcga-nsclc"],
        "  LUAD/**/TCGA-*-DX*.svs    diagnostic slides\n  LUSC/**/TCGA-*-DX*.svs\n"
        "  gdc_sample_sheet*.tsv     optional, in place of the two folders",
        _tcga_nsclc,
    ),
}


def isup(primary: int, secondary: int) -> int:
    """Return the ISUP grade of two Gleason patterns: 3+3 is 1, 3+4 2, 4+3 3, sums of 8 are 4, of 9 and 10 are 5."""
    if primary + secondary < 6:
        return 0
    return ISUP.get((primary, secondary)) or (4 if primary + secondary == 8 else 5)


def _tcga(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield `(case, path)` of the diagnostic slides of a folder, sorted by name."""
    paths = (p for p in folder.rglob("*") if p.suffix.lower() in sources.SLIDE_SUFFIXES)
    for path in sorted(paths, key=lambda p: p.name):
        match = TCGA.match(path.name)
        if match and match[2].upper() == "DX":
            yield match[1].upper(), path


def _by_stem(folder: Path, pattern: str, suffix: str) -> dict[str, Path]:
    """Return `{name without suffix: path}` of the files of a folder and its subfolders."""
    paths = sorted(folder.rglob(f"*{suffix}"))
    return {path.stem: path for path in paths if re.fullmatch(pattern, path.stem)}


def _splits(folder: Path) -> dict[str, str]:
    """Return `{slide: split}` of the files `train.csv`, `val.csv` and `test.csv`."""
    split_of_slide: dict[str, str] = {}
    for split in ("train", "val", "test"):
        if (folder / f"{split}.csv").exists():
            rows = _csv(folder / f"{split}.csv", ("slide_id",))
            split_of_slide |= {Path(row["slide_id"]).stem: split for row in rows}
    return split_of_slide


def _grade(text: str, folder: Path) -> int:
    if text not in tuple("012345"):
        raise SourceError(f"{folder / 'train.csv'}: isup_grade '{text}'; expected 0 to 5.")
    return int(text)


def _csv(path: Path, columns: Sequence[str], delimiter: str = ",") -> list[dict[str, str]]:
    """Return the rows of a table with these columns."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = list(csv.DictReader(file, delimiter=delimiter))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise SourceError(
            f"{path}: cannot be read ({error}); expected a table with columns {', '.join(columns)}."
        ) from error
    lacking = [column for column in columns if not rows or rows[0].get(column) is None]
    if lacking:
        raise SourceError(
            f"{path}: has no rows with '{lacking[0]}'; expected {', '.join(columns)}."
        )
    return rows
