"""CAMELYON17: lymph nodes of five centres, with labels of slides."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tfbig.cli.data import lymph_nodes
from tfbig.cli.data.collection import Collection, Recipe
from tfbig.cli.data.collection_tables import CollectionTable, Found, first_of, read_rows, shortened
from tfbig.cli.data.splits import split_rows
from tfbig.sources.names import title_of
from tfbig.units import counted

TRAINING_PATIENTS = 100
"""CAMELYON17: patients 0 to 99 are for training, 100 to 199 for testing."""
VALIDATION_SLIDES = 50


def read(folder: Path, seed: int) -> Found:
    """Read corrected slide labels, or those of `stages.csv`; 50 slides of the training patients validate.

    Without labels of test patients, the labelled slides are split 70:10:20 by patient.
    """
    found, table = Found(), CollectionTable(lymph_nodes.LYMPH_NODES)
    slides = lymph_nodes.slides_of(folder, r"patient_\d+_node_\d+")
    corrected = lymph_nodes.corrected_labels(folder, r"patient_\d+_node_\d+")
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
    found.notes += _split(table, len(slides.keys() - labels.keys()), seed)
    found.tables = [table]
    return found


def _split(table: CollectionTable, unlabelled: int, seed: int) -> list[str]:
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
    """Read the labels of the slides in `stages.csv`, which also lists the stage of each patient."""
    file = first_of(folder, "stages.csv", "stages*.csv") or folder / "stages.csv"
    rows = read_rows(file, {"slide": ("patient",), "stage": ("stage",)})
    return {
        title_of(row["slide"]): lymph_nodes.label_of(row["stage"], row["slide"], file, line)
        for line, row in enumerate(rows, start=2)
        if "_node_" in row["slide"]
    }


COLLECTION = Collection(
    about="lymph nodes of five centres, by slide (Litjens et al., 2018)",
    expected=(
        "  **/patient_000_node_0.tif 1000 slides\n"
        "  **/stages.csv             patient,stage: patient_000_node_0.tif,negative (itc, micro, macro)\n"
        "  **/*.csv                  optional, slide_id,label[,split]: corrected labels, e.g. of Ling et al. (2025)"
    ),
    read=read,
    recipes=(
        Recipe("big-layers-camelyon17-as-published", "Big-Layers, end to end", "slides"),
        Recipe(
            "big-layers-camelyon17-as-coded", "Big-Layers, end to end as its code has it", "slides"
        ),
        Recipe(
            "big-layers-camelyon17-frozen", "Big-Layers, baseline with a frozen encoder", "slides"
        ),
        Recipe("features-camelyon17", "Big-Layers, baseline on features", "bags"),
    ),
)
