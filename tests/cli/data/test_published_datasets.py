"""Public collections as they are downloaded: labels, splits, and what is missing."""

import pytest

from tfbig import SourceError
from tfbig.cli.data import published_datasets


def touch(folder, *names):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()


def labels(table):
    return {row["slide_id"]: int(row["label"]) for row in table.rows}


def splits(table):
    return {row["slide_id"]: row["split"] for row in table.rows}


def test_panda(tmp_path):
    lines = [f"p{n:03},karolinska,{n % 6},3+3" for n in range(120)]
    (tmp_path / "train.csv").write_text(
        "\n".join(["image_id,data_provider,isup_grade,gleason_score", *lines])
    )
    touch(tmp_path, *(f"train_images/p{n:03}.tiff" for n in range(119)))
    table = published_datasets.read("panda", tmp_path)
    assert labels(table) == {f"p{n:03}": n % 6 for n in range(119)}
    assert table.missing == ["train_images/p119.tiff"]
    parts = list(splits(table).values())
    assert [parts.count(split) for split in ("train", "val", "test")] == [95, 12, 12]
    assert splits(published_datasets.read("panda", tmp_path, seed=1)) != splits(table)
    (tmp_path / "splits").mkdir()
    for split, names in (("train", "p000 p001"), ("val", "p002"), ("test", "p003.tiff p119")):
        text = "\n".join(["slide_id", *names.split()])
        (tmp_path / "splits" / f"{split}.csv").write_text(text)
    published = published_datasets.read("panda", tmp_path)
    assert splits(published) == {"p000": "train", "p001": "train", "p002": "val", "p003": "test"}
    (tmp_path / "train.csv").write_text("image_id,isup_grade\np000,7\n")
    with pytest.raises(SourceError, match=r"train\.csv: isup_grade '7'; expected 0 to 5"):
        published_datasets.read("panda", tmp_path)


def test_camelyon16(tmp_path):
    touch(tmp_path, "training/normal/normal_001.tif", "training/tumor/tumor_001.tif", "x/other.tif")
    touch(tmp_path, *(f"testing/images/test_00{n}.tif" for n in (1, 2, 3)))
    assert labels(published_datasets.read("camelyon16", tmp_path)) == {
        "normal_001": 0,
        "tumor_001": 1,
    }
    (tmp_path / "testing" / "reference.csv").write_text(
        "test_001,Tumor,IDC,Macro\ntest_002.tif,Normal\n"
    )
    table = published_datasets.read("camelyon16", tmp_path)
    assert labels(table) == {"normal_001": 0, "tumor_001": 1, "test_001": 1, "test_002": 0}
    assert splits(table) == {
        "normal_001": "train",
        "tumor_001": "train",
        "test_001": "test",
        "test_002": "test",
    }
    assert table.missing[-1] == "test_*.tif: 3 of 129 slides"


def test_camelyon17(tmp_path):
    rows = [
        f"patient_{p:03}_node_{n}.tif,{s}"
        for p in (0, 1, 2, 100)
        for n, s in enumerate(published_datasets.PN_STAGES)
    ]
    (tmp_path / "stages.csv").write_text("\n".join(["patient,stage", "patient_000.zip,pN1", *rows]))
    names = [row.split(",")[0] for row in rows]
    touch(tmp_path, *(f"training/center_0/{name}" for name in names[:-1]))
    table = published_datasets.read("camelyon17", tmp_path)
    assert table.missing == ["patient_100_node_3.tif"]
    assert [int(row["label"]) for row in table.rows[:4]] == [0, 1, 1, 1]
    assert {row["case_id"] for row in table.rows} == {
        "patient_000",
        "patient_001",
        "patient_002",
        "patient_100",
    }
    parts = splits(table)
    assert list(parts.values()).count("val") == 3
    assert all(parts[f"patient_100_node_{n}"] == "test" for n in range(3))
    (tmp_path / "stages.csv").write_text("patient,stage\npatient_000_node_0.tif,pN9\n")
    with pytest.raises(
        SourceError, match="patient_000_node_0 has stage 'pn9'; expected one of negative"
    ):
        published_datasets.read("camelyon17", tmp_path)


def test_tcga_prad(tmp_path):
    columns = "case_submitter_id\tprimary_gleason_grade\tsecondary_gleason_grade"
    rows = [
        "TCGA-AA-0001\tPattern 3\tPattern 4",
        "TCGA-AA-0002\tPattern 5\tPattern 4",
        "TCGA-AA-0003\t'--\t'--",
    ]
    (tmp_path / "clinical.tsv").write_text("\n".join([columns, *rows]))
    for case, slide in (
        ("0001", "DX1"),
        ("0001", "DX2"),
        ("0002", "DX1"),
        ("0002", "TS1"),
        ("0003", "DX1"),
    ):
        touch(tmp_path, f"uuid-{case}{slide}/TCGA-AA-{case}-01Z-00-{slide}.ABCD.svs")
    table = published_datasets.read("tcga-prad", tmp_path)
    assert {row["case_id"]: int(row["label"]) for row in table.rows} == {
        "TCGA-AA-0001": 2,
        "TCGA-AA-0002": 5,
    }
    assert table.missing == ["clinical.tsv: Gleason patterns of TCGA-AA-0003"]
    drawn = {
        published_datasets.read("tcga-prad", tmp_path, seed).rows[0]["slide_id"]
        for seed in range(8)
    }
    assert len(drawn) == 2  # one of the two slides of a patient


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
    assert published_datasets.isup(*patterns) == grade


def test_tcga_nsclc(tmp_path):
    for n in range(10):
        for kind in ("LUAD", "LUSC"):
            for slide in ("DX1", "DX2", "BS1"):
                name = f"TCGA-{kind[2:]}-00{n:02}-01Z-00-{slide}.X.svs"
                touch(tmp_path, f"TCGA-{kind}/u{n}/{name}")
    touch(tmp_path, "other/TCGA-ZZ-0000-01Z-00-DX1.X.svs")
    table = published_datasets.read("tcga-nsclc", tmp_path)
    assert len(table.rows) == 40
    assert len(table.missing) == 1 and table.missing[0].startswith("TCGA-ZZ-0000")
    of_case = {}
    for row in table.rows:
        of_case.setdefault(row["case_id"], set()).add(row["split"])
    assert all(len(parts) == 1 for parts in of_case.values())
    parts = list(splits(table).values())
    assert (parts.count("train"), parts.count("val"), parts.count("test")) == (32, 0, 8)
    sheet = "File Name\tProject ID\nTCGA-ZZ-0000-01Z-00-DX1.X.svs\tTCGA-LUSC\n"
    (tmp_path / "gdc_sample_sheet.2024.tsv").write_text(sheet)
    assert labels(published_datasets.read("tcga-nsclc", tmp_path))["TCGA-ZZ-0000-01Z-00-DX1.X"] == 1
