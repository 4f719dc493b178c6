"""Public collections of slides as they are downloaded: their files, labels and splits."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tfbig import SourceError, sources
from tfbig.cli.data.collection_tables import Found, Table, first_of, read_rows, shortened
from tfbig.cli.data.splits import split_rows
from tfbig.sources.names import title_of
from tfbig.sources.table import SPLITS
from tfbig.units import counted

ISUP_CLASSES = tuple(f"ISUP {grade}" for grade in range(6))
ISUP = {(3, 3): 1, (3, 4): 2, (4, 3): 3}
"""ISUP grades of primary and secondary Gleason pattern; a sum of 8 is 4, of 9 or 10 is 5."""
LYMPH_NODES = ("normal", "tumour")
NORMAL = {"0": 0, "negative": 0, "normal": 0}
TUMOUR = dict.fromkeys(("1", "itc", "micro", "macro", "tumor", "tumour", "positive"), 1)
"""Labels of slides of CAMELYON: 0 and 1, stages of `stages.csv`, and the names of both challenges."""
NO_SLIDES = ("masks", "background_tissue", "annotations")
"""Folders of CAMELYON with images that are named as the slides."""
TRAINING_PATIENTS = 100
"""CAMELYON17: patients 0 to 99 are for training, 100 to 199 for testing."""
VALIDATION_SLIDES = 50
TCGA = re.compile(r"(TCGA-\w\w-\w{4})-(\d\d)[A-Z]-\d\d-(DX|TS|BS|MS)\w*", re.IGNORECASE)
"""Barcode of a slide: the case, the kind of the sample, and whether it is diagnostic (DX) or a frozen section."""
NORMAL_TISSUE = "11"
"""Kind of a sample: solid tissue without tumour."""
EIGHTY_TWENTY = (0.72, 0.08, 0.2)
"""Shares of 80:20, with a tenth of the training share for validation."""


def panda(folder: Path, seed: int) -> Found:
    """Read `train.csv`; splits of Song et al. (2024) in `splits/`, else 80:10:10, and 80:20 for PatchGD.

    Args:
        folder: Folder of the downloaded files.
        seed: Random seed of splits that are drawn.
    """
    found, slides, all_slides = Found(), Table(ISUP_CLASSES), Table(ISUP_CLASSES, "patchgd")
    file = folder / "train.csv"
    rows = read_rows(file, {"slide": ("image_id",), "grade": ("isup_grade",)})
    split_of_slide = _splits(folder / "splits")
    images = {path.stem: path for path in (folder / "train_images").glob("*.tiff")}
    absent = []
    for line, row in enumerate(rows, start=2):
        name, grade = row["slide"], _grade(row["grade"], file, line)
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


def camelyon16(folder: Path, seed: int) -> Found:
    """Read labels of names and of `reference.csv`, or corrected ones; a tenth of the training slides validates.

    Args:
        folder: Folder of the downloaded files.
        seed: Random seed of splits that are drawn.
    """
    found, table = Found(), Table(LYMPH_NODES)
    slides = _by_stem(folder, r"(normal|tumor|test)_\d+")
    corrected = _corrected_labels(folder, r"(normal|tumor|test)_\d+")
    labels = corrected.labels if corrected else _challenge_labels(folder, slides, found)
    for name, path in slides.items():
        if name in labels:
            split = "test" if name.startswith("test") else "train"
            table.add(name, name, labels[name], path, split)
    if corrected:
        found.notes += corrected.notes(folder, slides)
    training = split_rows(table.of_split("train"), (0.9, 0.1, 0.0), seed)
    table.rows = [*training, *table.of_split("test")]
    found.notes.append(f"a tenth of the training slides validates, drawn by label with seed {seed}")
    for kind, count in (("normal", 159), ("tumor", 111), ("test", 129)):
        there = sum(name.startswith(kind) for name in slides)
        if there < count:
            found.missing.append(f"{kind}_*.tif: {there} of {count} slides")
    found.tables = [table]
    return found


def _challenge_labels(folder: Path, slides: Mapping[str, Path], found: Found) -> dict[str, int]:
    """Return the labels of the challenge; those of test slides are in `reference.csv`."""
    kinds = {name: name.split("_")[0] for name in slides}
    labels = {name: int(kind == "tumor") for name, kind in kinds.items() if kind != "test"}
    reference = first_of(folder, "reference.csv")
    if reference is None:
        found.missing.append("reference.csv (test_001,Tumor,...): labels of the test slides")
        return labels
    lines = reference.read_text(encoding="utf-8-sig").splitlines()
    rows = [[cell.strip() for cell in line.split(",")] for line in lines]
    tested = {title_of(row[0]): int(row[1].lower() == "tumor") for row in rows if len(row) > 1}
    without = [n for n, kind in kinds.items() if kind == "test" and n not in tested]
    found.missing += shortened([f"{reference.name}: label of {n}" for n in without], "labels")
    return labels | {name: label for name, label in tested.items() if kinds.get(name) == "test"}


def camelyon17(folder: Path, seed: int) -> Found:
    """Read corrected slide labels, or those of `stages.csv`; 50 slides of the training patients validate.

    Without labels of test patients, the labelled slides are split 70:10:20 by patient.

    Args:
        folder: Folder of the downloaded files.
        seed: Random seed of splits that are drawn.
    """
    found, table = Found(), Table(LYMPH_NODES)
    slides = _by_stem(folder, r"patient_\d+_node_\d+")
    corrected = _corrected_labels(folder, r"patient_\d+_node_\d+")
    labels = corrected.labels if corrected else _stages(folder)
    split_of_slide = corrected.splits if corrected else {}
    for name, label in sorted(labels.items()):
        if name in slides:
            patient = name.split("_node_")[0]
            trains = int(patient.split("_")[1]) < TRAINING_PATIENTS
            split = split_of_slide.get(name) or ("train" if trains else "test")
            table.add(patient, name, label, slides[name], split)
    absent = [f"{name}.tif" for name in sorted(labels.keys() - slides.keys())]
    found.missing += shortened(absent, "labelled slides")
    if corrected:
        found.notes += corrected.notes(folder, slides)
    found.notes += _split_camelyon17(table, len(slides.keys() - labels.keys()), seed)
    found.tables = [table]
    return found


def _split_camelyon17(table: Table, unlabelled: int, seed: int) -> list[str]:
    """Choose the validation slides of CAMELYON17, and test patients where they have no labels; return the rules."""
    if table.rows and not table.of_split("test"):
        table.rows = split_rows(table.rows, (0.7, 0.1, 0.2), seed)
        return [
            f"patients {TRAINING_PATIENTS} to 199 have no labels, their stages were never published; "
            f"{unlabelled} slides are not used",
            f"the labelled slides are split 70:10:20 by patient with seed {seed}, which is not the test of the paper",
            "the paper uses the labels of Ling et al. (2025): put their table slide_id,label into the folder",
        ]
    if table.of_split("val"):
        return ["train, val and test as in the table of labels"]
    training = table.of_split("train")
    number = min(VALIDATION_SLIDES, len(training) // 4)
    for place in np.random.default_rng(seed).permutation(len(training))[:number]:
        training[place]["split"] = "val"
    return [f"{counted(number, 'slide')} of the training patients validate, drawn with seed {seed}"]


def _stages(folder: Path) -> dict[str, int]:
    """Return the labels of the slides in `stages.csv`, which also lists the stage of each patient."""
    file = first_of(folder, "stages.csv", "stages*.csv") or folder / "stages.csv"
    rows = read_rows(file, {"slide": ("patient",), "stage": ("stage",)})
    return {
        title_of(row["slide"]): _lymph_node(row["stage"], row["slide"], file, line)
        for line, row in enumerate(rows, start=2)
        if "_node_" in row["slide"]
    }


def tcga_prad(folder: Path, seed: int) -> Found:
    """Read ISUP grades; one slide of each patient, drawn by the seed, is for testing.

    Grades are those of `tcga_prad_test.csv` by slide, or else Gleason patterns of `clinical.tsv` by patient.

    Args:
        folder: Folder of the downloaded files.
        seed: Random seed of the slides that are drawn.
    """
    found, table = Found(), Table(ISUP_CLASSES)
    by_slide = _grades_by_slide(folder)
    by_case = {} if by_slide else _grades_by_case(folder)
    of_case: dict[str, list[tuple[Path, int]]] = {}
    without: list[str] = []
    for slide in _tcga(folder, diagnostic=True):
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
    """Return the ISUP grades of a table with columns `slide_id` and `label`, such as that of the Big-Layers code."""
    file = first_of(folder, "tcga_prad*.csv")
    if file is None:
        return {}
    rows = read_rows(file, {"slide": ("slide_id",), "grade": ("label",)})
    return {
        title_of(row["slide"]): _grade(row["grade"], file, n) for n, row in enumerate(rows, start=2)
    }


def _grades_by_case(folder: Path) -> dict[str, int]:
    """Return the ISUP grades of `clinical.tsv` of GDC; a patient has a line for each diagnosis and treatment."""
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


def tcga_nsclc(folder: Path, seed: int) -> Found:
    """Read LUAD or LUSC from GDC's sample sheet or the folder; 80:20 by patient, as in PatchGD.

    All slides count, diagnostic ones and frozen sections: GDC has 3220 of 1026 patients, the numbers of the paper.

    Args:
        folder: Folder of the downloaded files.
        seed: Random seed of the split.
    """
    found, table = Found(), Table(("LUAD", "LUSC"))
    sheets = sorted(folder.glob("gdc_sample_sheet*.tsv"))
    columns = {"file": ("File Name",), "project": ("Project ID",)}
    projects = {
        row["file"]: row["project"] for sheet in sheets for row in read_rows(sheet, columns)
    }
    kinds: Counter[str] = Counter()
    unknown = []
    for slide in _tcga(folder):
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


def isup(primary: int, secondary: int) -> int:
    """Return the ISUP grade of two Gleason patterns: 3+3 is 1, 3+4 2, 4+3 3, sums of 8 are 4, of 9 and 10 are 5."""
    if primary + secondary < 6:
        return 0
    return ISUP.get((primary, secondary)) or (4 if primary + secondary == 8 else 5)


@dataclass(frozen=True)
class TCGASlide:
    """A slide of TCGA: its case, the kind of its sample, its section and its file."""

    case: str
    sample: str
    section: str
    path: Path


def _tcga(folder: Path, diagnostic: bool = False) -> Iterator[TCGASlide]:
    """Yield the slides of a folder, sorted by name; only the diagnostic ones if asked for."""
    paths = (p for p in folder.rglob("*") if p.suffix.lower() in sources.SLIDE_SUFFIXES)
    for path in sorted(paths, key=lambda p: p.name):
        if match := TCGA.match(path.name):
            case, sample, section = match.groups()
            if section.upper() == "DX" or not diagnostic:
                yield TCGASlide(case.upper(), sample, section.upper(), path)


def _by_stem(folder: Path, pattern: str) -> dict[str, Path]:
    """Return `{name without suffix: path}` of the slides of CAMELYON in a folder and its subfolders."""
    paths = sorted(folder.rglob("*.tif"))
    return {
        path.stem: path
        for path in paths
        if re.fullmatch(pattern, path.stem)
        and not {part.lower() for part in path.relative_to(folder).parts} & {*NO_SLIDES}
    }


@dataclass(frozen=True)
class _Corrected:
    """Corrected labels of slides, such as those of Ling et al. (2025), and their splits if the table has them."""

    file: Path
    labels: Mapping[str, int]
    splits: Mapping[str, str]

    def notes(self, folder: Path, slides: Mapping[str, Path]) -> list[str]:
        """Return the lines that say where labels are from, and how many slides they leave out."""
        out = len(slides.keys() - self.labels.keys())
        return [
            f"labels of {self.file.relative_to(folder)}, without {counted(out, 'slide')} that it leaves out"
        ]


def _corrected_labels(folder: Path, pattern: str) -> _Corrected | None:
    """Return the labels of the first table with columns `slide_id` and `label` whose slides fit the pattern."""
    for file in sorted(folder.rglob("*.csv")):
        with file.open(encoding="utf-8-sig", errors="replace") as opened:
            columns = opened.readline().strip().split(",")
        if not {"slide_id", "label"} <= {*columns}:
            continue
        names = ("slide_id", "label", "split")
        wanted: dict[str, Sequence[str]] = {key: (key,) for key in names if key in columns}
        rows = [
            (line, row | {"slide_id": title_of(row["slide_id"])})
            for line, row in enumerate(read_rows(file, wanted), start=2)
        ]
        rows = [(line, row) for line, row in rows if re.fullmatch(pattern, row["slide_id"])]
        if rows:
            labels = {
                row["slide_id"]: _lymph_node(row["label"], row["slide_id"], file, line)
                for line, row in rows
            }
            splits = {r["slide_id"]: r["split"] for _, r in rows if r.get("split") in SPLITS}
            return _Corrected(file, labels, splits)
    return None


def _lymph_node(text: str, slide: str, file: Path, line: int) -> int:
    """Return 0 for a lymph node without metastasis, 1 for one with a metastasis."""
    labels = NORMAL | TUMOUR
    if text.lower() not in labels:
        raise SourceError(
            f"{file}: line {line}: {slide} has label '{text}'; expected one of {', '.join(labels)}."
        )
    return labels[text.lower()]


def _splits(folder: Path) -> dict[str, str]:
    """Return `{slide: split}` of the files `train.csv`, `val.csv` and `test.csv`."""
    split_of_slide: dict[str, str] = {}
    for split in SPLITS:
        if (folder / f"{split}.csv").exists():
            rows = read_rows(folder / f"{split}.csv", {"slide": ("slide_id", "FILENAME")})
            names = (title_of(row["slide"]) for row in rows)
            split_of_slide |= dict.fromkeys(names, split)
    return split_of_slide


def _grade(text: str, file: Path, line: int) -> int:
    if text not in tuple("012345"):
        raise SourceError(f"{file}: line {line}: ISUP grade '{text}'; expected 0 to 5.")
    return int(text)


READERS: dict[str, Callable[[Path, int], Found]] = {
    "panda": panda,
    "camelyon16": camelyon16,
    "camelyon17": camelyon17,
    "tcga-prad": tcga_prad,
    "tcga-nsclc": tcga_nsclc,
}
"""Function from folder and seed to what is found, for each collection of slides."""
