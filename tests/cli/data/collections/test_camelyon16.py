"""Tables of CAMELYON16: labels, splits, and what is missing."""

from dataset_folders import write_lines

from tfbig.cli.data.collections import camelyon16


def touch(folder, *names):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()


def labels(table):
    return {row["slide_id"]: row["label"] for row in table.rows}


def counts(table):
    return [len(table.of_split(split)) for split in ("train", "val", "test")]


def test_camelyon16(tmp_path):
    for kind, number in (("normal", 20), ("tumor", 10)):
        names = (f"training/{kind}/{kind}_{n:03}.tif" for n in range(number))
        touch(tmp_path, *names, f"background_tissue/{kind}_000.tif", "x/other.tif")
    touch(tmp_path, *(f"testing/images/test_00{n}.tif" for n in (1, 2, 3)))
    found = camelyon16.read(tmp_path, 0)
    assert counts(found.tables[0]) == [27, 3, 0]
    assert "reference.csv (test_001,Tumor,...): labels of the test slides" in found.missing
    lines = ("test_001,Tumor,IDC,Macro", "test_002.tif,Normal")
    write_lines(tmp_path / "testing" / "reference.csv", *lines)
    found = camelyon16.read(tmp_path, 0)
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
    found = camelyon16.read(tmp_path, 0)
    assert labels(found.tables[0]) == {"normal_000": "tumour", "test_003": "normal"}
    assert "labels of camelyon16_test.csv, without 31 slides that it leaves out" in found.notes[0]
