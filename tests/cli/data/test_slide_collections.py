"""Collections of slides as they are downloaded: labels, splits, and what is missing."""

import dataset_folders
import pytest
from dataset_folders import write_lines

from tfbig import SourceError
from tfbig.cli.data import slide_collections


def touch(folder, *names):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()


def labels(table):
    return {row["slide_id"]: row["label"] for row in table.rows}


def splits(table):
    return {row["slide_id"]: row["split"] for row in table.rows}


def counts(table):
    return [len(table.of_split(split)) for split in ("train", "val", "test")]


def of_cases(table):
    cases = {}
    for row in table.rows:
        cases.setdefault(row["case_id"], set()).add(row["split"])
    return cases


def test_panda(tmp_path):
    lines = [f"p{n:03},karolinska,{n % 6},3+3" for n in range(120)]
    write_lines(tmp_path / "train.csv", "image_id,data_provider,isup_grade,gleason_score", *lines)
    touch(tmp_path, *(f"train_images/p{n:03}.tiff" for n in range(119)))
    found = slide_collections.panda(tmp_path, 0)
    slides, patchgd = found.tables
    assert labels(slides) == {f"p{n:03}": f"ISUP {n % 6}" for n in range(119)}
    assert found.missing == ["train_images/p119.tiff"]
    assert (counts(slides), counts(patchgd)) == ([95, 12, 12], [86, 9, 24])
    assert splits(slide_collections.panda(tmp_path, 1).tables[0]) != splits(slides)
    for split, names in (("train", "p000 p001"), ("val", "p002"), ("test", "p003.tiff p119")):
        write_lines(tmp_path / "splits" / f"{split}.csv", "slide_id", *names.split())
    found = slide_collections.panda(tmp_path, 0)
    published, patchgd = found.tables
    assert splits(published) == {"p000": "train", "p001": "train", "p002": "val", "p003": "test"}
    assert len(patchgd.rows) == 119
    assert "without 115 slides that it leaves out" in found.notes[0]
    write_lines(tmp_path / "train.csv", "image_id,isup_grade", "p000,0", "p001,7")
    with pytest.raises(SourceError, match=r"train\.csv: line 3: ISUP grade '7'; expected 0 to 5"):
        slide_collections.panda(tmp_path, 0)
    write_lines(tmp_path / "train.csv", "image_id,grade", "p000,0")
    with pytest.raises(SourceError, match=r"line 1: has no column 'isup_grade'; expected a table"):
        slide_collections.panda(tmp_path, 0)


def test_camelyon16(tmp_path):
    for kind, number in (("normal", 20), ("tumor", 10)):
        names = (f"training/{kind}/{kind}_{n:03}.tif" for n in range(number))
        touch(tmp_path, *names, f"background_tissue/{kind}_000.tif", "x/other.tif")
    touch(tmp_path, *(f"testing/images/test_00{n}.tif" for n in (1, 2, 3)))
    found = slide_collections.camelyon16(tmp_path, 0)
    assert counts(found.tables[0]) == [27, 3, 0]
    assert "reference.csv (test_001,Tumor,...): labels of the test slides" in found.missing
    lines = ("test_001,Tumor,IDC,Macro", "test_002.tif,Normal")
    write_lines(tmp_path / "testing" / "reference.csv", *lines)
    found = slide_collections.camelyon16(tmp_path, 0)
    (table,) = found.tables
    assert counts(table) == [27, 3, 2]
    assert [row["label"] for row in table.of_split("val")].count("tumour") == 1
    assert labels(table)["test_001"] == labels(table)["tumor_000"] == "tumour"
    assert labels(table)["test_002"] == labels(table)["normal_000"] == "normal"
    assert not table.twice
    assert found.missing[0] == "reference.csv: label of test_003"
    assert found.missing[-1] == "test_*.tif: 3 of 129 slides"
    corrected = ("slide_id,label,split", "normal_000,1,test", "test_003.tif,0,test")
    write_lines(tmp_path / "camelyon16_test.csv", *corrected)
    found = slide_collections.camelyon16(tmp_path, 0)
    assert labels(found.tables[0]) == {"normal_000": "tumour", "test_003": "normal"}
    assert "labels of camelyon16_test.csv, without 31 slides that it leaves out" in found.notes[0]


def test_camelyon17(tmp_path):
    """Public stages are of training patients only, which are then split; with test labels, 50 slides validate."""
    dataset_folders.camelyon17(tmp_path, patients=20)
    found = slide_collections.camelyon17(tmp_path, 0)
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
    found = slide_collections.camelyon17(tmp_path, 0)
    assert counts(found.tables[0]) == [75, 25, 1]
    assert found.notes == ["25 slides of the training patients validate, drawn with seed 0"]
    (tmp_path / "testing" / "patients" / "patient_100_node_0.tif").unlink()
    assert slide_collections.camelyon17(tmp_path, 0).missing == ["patient_100_node_0.tif"]
    write_lines(file, "patient,stage", "patient_000.zip,pN0", "patient_000_node_0.tif,pN9")
    with pytest.raises(SourceError, match=r"line 3: patient_000_node_0\.tif has label 'pN9'"):
        slide_collections.camelyon17(tmp_path, 0)


def test_corrected_labels_of_camelyon17(tmp_path):
    """The table of Ling et al. has labels of all slides; those that it leaves out are not used."""
    dataset_folders.camelyon17(tmp_path, patients=4, corrected=True)
    found = slide_collections.camelyon17(tmp_path, 0)
    assert counts(found.tables[0]) == [16, 4, 3]
    assert found.notes == [
        "labels of slides_split.csv, without 1 slide that it leaves out",
        "train, val and test as in the table of labels",
    ]
    file = tmp_path / "slides_split.csv"
    rows = [line.rpartition(",")[0] for line in file.read_text().split()]
    write_lines(file, *rows)  # without splits
    assert counts(slide_collections.camelyon17(tmp_path, 0).tables[0]) == [15, 5, 3]


@pytest.mark.parametrize("new_names", [False, True])
def test_tcga_prad(new_names, tmp_path):
    dataset_folders.tcga_prad(tmp_path, new_names)
    found = slide_collections.tcga_prad(tmp_path, 0)
    (table,) = found.tables
    of_case = {row["case_id"][-1]: row["label"] for row in table.rows}
    assert of_case == {str(n): f"ISUP {n + 1}" for n in range(5)}
    assert {row["split"] for row in table.rows} == {"test"}
    assert not any("TS1" in row["slide_id"] for row in table.rows)
    (missing,) = found.missing
    assert missing == "clinical.tsv: grade of TCGA-2A-0005-01Z-00-DX2.00000005-ABCD.svs"
    drawn = {
        slide_collections.tcga_prad(tmp_path, seed).tables[0].rows[0]["slide_id"]
        for seed in range(8)
    }
    assert len(drawn) == 2  # one of the two slides of a patient
    slide = "TCGA-2A-0001-01Z-00-DX2.00000001-ABCD"
    write_lines(tmp_path / "tcga_prad_test.csv", "slide_id,label", f"{slide},5")
    assert labels(slide_collections.tcga_prad(tmp_path, 0).tables[0]) == {slide: "ISUP 5"}


def test_columns_of_clinical_data(tmp_path):
    write_lines(tmp_path / "clinical.tsv", "case_id\tprimary_gleason_grade", "a\tPattern 3")
    expected = "has no column 'case_submitter_id' or 'cases.submitter_id' and no column 'second"
    with pytest.raises(SourceError, match=expected):
        slide_collections.tcga_prad(tmp_path, 0)


@pytest.mark.parametrize(
    ("patterns", "grade"),
    [
        ((3, 3), 1),
        ((3, 4), 2),
        ((4, 3), 3),
        ((4, 4), 4),
        ((3, 5), 4),
        ((5, 3), 4),
        ((4, 5), 5),
        ((5, 5), 5),
        ((2, 3), 0),
    ],
)
def test_isup_grades(patterns, grade):
    assert slide_collections.isup(*patterns) == grade


@pytest.mark.parametrize("sheet", [False, True])
def test_tcga_nsclc(sheet, tmp_path):
    dataset_folders.tcga_nsclc(tmp_path, cases=25, sheet=sheet)
    touch(tmp_path, "other/TCGA-ZZ-0000-01Z-00-DX1.X.svs")
    found = slide_collections.tcga_nsclc(tmp_path, 0)
    (table,) = found.tables
    assert len(table.rows) == 100
    assert len(found.missing) == 1 and found.missing[0].startswith("TCGA-ZZ-0000")
    cases = of_cases(table)
    assert all(len(parts) == 1 for parts in cases.values())
    parts = [min(parts) for parts in cases.values()]
    assert [parts.count(split) for split in ("train", "val", "test")] == [36, 4, 10]
    assert found.notes[0].startswith("50 diagnostic slides (DX) and 50 frozen sections")
    assert "2 are of normal tissue" in found.notes[0]
