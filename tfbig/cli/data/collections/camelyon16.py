"""CAMELYON16: lymph nodes, normal or tumour."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tfbig.cli.data import lymph_nodes
from tfbig.cli.data.collection import Collection, Recipe
from tfbig.cli.data.collection_tables import CollectionTable, Found, first_of, shortened
from tfbig.cli.data.splits import split_rows
from tfbig.sources.names import title_of


def read(folder: Path, seed: int) -> Found:
    """Read labels of names and of `reference.csv`, or corrected ones; a tenth of the training slides validates."""
    found, table = Found(), CollectionTable(lymph_nodes.LYMPH_NODES)
    slides = lymph_nodes.slides_of(folder, r"(normal|tumor|test)_\d+")
    corrected = lymph_nodes.corrected_labels(folder, r"(normal|tumor|test)_\d+")
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
    """Read the labels of the challenge; those of test slides are in `reference.csv`."""
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


COLLECTION = Collection(
    about="lymph nodes, normal or tumour (Bejnordi et al., 2017)",
    expected=(
        "  **/normal_001.tif         159 slides\n  **/tumor_001.tif          111\n"
        "  **/test_001.tif           129\n  **/reference.csv          test_001,Tumor,...\n"
        "  **/*.csv                  optional, slide_id,label: corrected labels, e.g. of Ling et al. (2025)"
    ),
    read=read,
    recipes=(
        Recipe(
            "test-camelyon16",
            "all slides as external test of a run on CAMELYON17",
            "slides",
            "big-layers-camelyon17-as-published",
        ),
        Recipe(
            "big-layers-camelyon17-as-published",
            "training on CAMELYON16, with the settings for CAMELYON17",
            "slides",
            run="big-layers-camelyon16",
        ),
        Recipe("whole-slides-camelyon16", "whole slides, streamed without background", "slides"),
        Recipe("dtfd-original", "DTFD-MIL on features", "bags"),
        Recipe("transmil-original", "TransMIL on features", "bags"),
    ),
)
