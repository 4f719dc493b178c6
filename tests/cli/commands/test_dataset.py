"""`tfbig dataset`."""

import csv

from cli_runs import write_cohort_slide

from tfbig.cli.data import splits
from tfbig.cli.main import main


def touch(folder, *names):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()


def test_table_and_missing_files(tmp_path, capsys):
    for k, kind in enumerate(("LUAD", "LUSC")):
        touch(tmp_path, *(f"{kind}/TCGA-A{k}-000{n}-01Z-00-DX1.X.svs" for n in range(5)))
    out = tmp_path / "out"
    assert main(["dataset", "tcga-nsclc", str(tmp_path), "--out", str(out)]) == 0
    assert "train: 8 slides (4 LUAD, 4 LUSC)" in capsys.readouterr().out
    rows = list(csv.DictReader((out / "slides.csv").read_text().splitlines()))
    assert list(rows[0]) == ["case_id", "slide_id", "label", "split", "path"]
    clam = list(csv.DictReader((out / "splits_0.csv").read_text().splitlines()))
    assert sorted(row["train"] for row in clam) == sorted(
        r["slide_id"] for r in rows if r["split"] == "train"
    )
    assert [row["test"] for row in clam if row["test"]] == [
        r["slide_id"] for r in rows if r["split"] == "test"
    ]
    assert main(["dataset", "camelyon16", str(tmp_path)]) == 1
    output = capsys.readouterr()
    assert "missing: reference.csv" in output.out
    assert "has no slides of camelyon16. Expected:" in output.err
    assert main(["dataset", "panda", str(tmp_path)]) == 1
    assert "train.csv: cannot be read" in capsys.readouterr().err
    assert main(["dataset", "panda"]) == 0
    assert "isup_grade" in capsys.readouterr().out
    assert main(["dataset", "panda", str(tmp_path / "none")]) == 2
    error = capsys.readouterr().err
    assert "none: no such folder. Check the path" in error
    assert "Expected:\n  train.csv" in error


def test_folds(tmp_path):
    for number in range(12):
        kind = ("normal", "tumor")[number % 2]
        write_cohort_slide(tmp_path / f"{kind}_{number:03}.tif", (130, 70, 160), 64)
    assert (
        main(["dataset", "camelyon16", str(tmp_path), "--out", str(tmp_path), "--folds", "4"]) == 3
    )
    assert sorted(p.name for p in tmp_path.glob("splits_*")) == [
        f"splits_{n}.csv" for n in range(4)
    ]
    split_of_slide = splits.read_clam_splits(tmp_path / "splits_3.csv")
    assert [*split_of_slide.values()].count("test") == 3
