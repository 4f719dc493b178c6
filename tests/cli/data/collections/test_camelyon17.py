"""Tables of CAMELYON17: labels, splits, and what is missing."""

import dataset_folders
import pytest
from dataset_folders import write_lines

from tfbig import SourceError
from tfbig.cli.data.collections import camelyon17


def labels(table):
    return {row["slide_id"]: row["label"] for row in table.rows}


def counts(table):
    return [len(table.of_split(split)) for split in ("train", "val", "test")]


def of_cases(table):
    cases = {}
    for row in table.rows:
        cases.setdefault(row["case_id"], set()).add(row["split"])
    return cases


def test_camelyon17(tmp_path):
    """Public stages are of training patients only, which are then split; with test labels, 50 slides validate."""
    dataset_folders.camelyon17(tmp_path, patients=20)
    found = camelyon17.read(tmp_path, 0)
    (table,) = found.tables
    assert counts(table) == [70, 10, 20]
    assert labels(table)["patient_000_node_0"] == "normal"
    assert labels(table)["patient_000_node_1"] == "tumour"
    assert all(len(parts) == 1 for parts in of_cases(table).values())
    assert found.notes[0].endswith("their stages were never published; 4 slides are not used")
    assert "split 70:10:20 by patient with seed 0" in found.notes[1]
    assert found.missing == []
    file = tmp_path / "training" / "stages.csv"
    write_lines(file, *file.read_text().split(), "patient_100_node_0.tif,macro")
    found = camelyon17.read(tmp_path, 0)
    assert counts(found.tables[0]) == [75, 25, 1]
    assert found.notes == ["25 slides of the training patients validate, drawn with seed 0"]
    (tmp_path / "testing" / "patients" / "patient_100_node_0.tif").unlink()
    assert camelyon17.read(tmp_path, 0).missing == ["patient_100_node_0.tif"]
    write_lines(file, "patient,stage", "patient_000.zip,pN0", "patient_000_node_0.tif,pN9")
    with pytest.raises(SourceError, match=r"line 3: patient_000_node_0\.tif has label 'pN9'"):
        camelyon17.read(tmp_path, 0)


def test_corrected_labels_of_camelyon17(tmp_path):
    """The table of Ling et al. has labels of all slides; those that it leaves out are not used."""
    dataset_folders.camelyon17(tmp_path, patients=4, corrected=True)
    found = camelyon17.read(tmp_path, 0)
    assert counts(found.tables[0]) == [16, 4, 3]
    assert found.notes == [
        "labels of slides_split.csv, without 1 slide that it leaves out",
        "train, val and test as in the table of labels",
    ]
    file = tmp_path / "slides_split.csv"
    rows = [line.rpartition(",")[0] for line in file.read_text().split()]
    write_lines(file, *rows)  # without splits
    assert counts(camelyon17.read(tmp_path, 0).tables[0]) == [15, 5, 3]
