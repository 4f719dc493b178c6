"""Splits by case, folds, files of CLAM, and `--confine`."""

from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
import tifffile
from cli_runs import cohort_settings, rows_of, write_table
from hypothesis import given
from hypothesis import strategies as st

import train
from tfbig import SourceError
from tfbig.cli.data import cohort, folds, splits
from tfbig.cli.data.run_data import Data
from tfbig.sources.table import SPLITS, Table

SMALL = ["--encoder", "small"]
FLAGS = ["--task", "images", "--images", "slides", "--side", "64", "--dry-run", *SMALL]


def test_classes_of_few_cases_share_a_validation_set():
    """A tenth of each class alone rounds to no case."""
    labels = ["a"] * 3 + ["b"] * 4 + ["c"] * 5
    result = splits.split_rows([{"label": label} for label in labels])
    counts = Counter((row["label"], row["split"]) for row in result)
    assert [sum(counts[k, split] for k in "abc") for split in SPLITS] == [8, 1, 3]
    assert all(counts[label, "train"] >= 2 for label in "abc")


@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=6),
    st.tuples(*[st.integers(1, 9)] * 3),
    st.integers(0, 5),
)
def test_shares_of_splits(sizes, shares, seed):
    """The shares of all cases are exact up to one, those of a class up to one and a half."""
    rows = [{"label": label} for label, size in enumerate(sizes) for _ in range(size)]
    result = splits.split_rows(rows, shares, seed)
    for label, most in ((None, 1), *((label, 1.5) for label in range(len(sizes)))):
        chosen = [row["split"] for row in result if label is None or row["label"] == label]
        counts = np.array([chosen.count(split) for split in SPLITS])
        assert (abs(counts - np.array(shares) / sum(shares) * len(chosen)) < most).all()


def test_split_rows():
    rows = [{"label": str(p % 3), "patient": f"p{p}"} for p in range(60) for _ in range(1 + p % 4)]
    result = splits.split_rows(rows, seed=1)
    where = {}
    for row in result:
        where.setdefault(row["patient"], set()).add(row["split"])
    assert all(len(s) == 1 for s in where.values())
    for label in "012":
        split_of_patient = {row["patient"]: row["split"] for row in result if row["label"] == label}
        counts = [list(split_of_patient.values()).count(split) for split in SPLITS]
        assert counts == [14, 2, 4]
    assert result == splits.split_rows(rows, seed=1)
    assert result != splits.split_rows(rows, seed=2)
    alone = splits.split_rows([{"label": "0"}] * 10)
    assert sorted(row["split"] for row in alone) == ["test"] * 2 + ["train"] * 7 + ["val"]


def test_clam_splits(cohort_table, tmp_path):
    rows = folds.fold_rows(cohort.read(cohort_settings(cohort_table)).table.rows, 4, 2)
    splits.write_clam_splits(tmp_path / "splits_2.csv", rows)
    again = cohort.read(cohort_settings(cohort_table, splits=str(tmp_path / "splits_2.csv")))
    assert [r["split"] for r in again.table.rows] == [r["split"] for r in rows]
    table = rows_of(tmp_path / "splits_2.csv")
    write_table(tmp_path / "few.csv", [row | {"train": ""} for row in table])
    fewer = cohort.read(cohort_settings(cohort_table, splits=str(tmp_path / "few.csv")))
    assert {row["split"] for row in fewer.table.rows} == {"val", "test"}
    twice = [row | {"val": row["train"]} for row in table]
    with pytest.raises(SourceError, match="is in 'train' and in 'val'"):
        splits.read_clam_splits(write_table(tmp_path / "twice.csv", twice))
    with pytest.raises(
        SourceError,
        match="no column 'val' and no column 'test'; expected a table with",
    ):
        splits.read_clam_splits(write_table(tmp_path / "other.csv", [{"train": "a"}]))


def write_slide(path, seed=0):
    image = np.full((96, 96, 3), 240, np.uint8)
    image[16:80, 16:80] = np.random.default_rng(seed).integers(60, 180, (64, 64, 3))
    tifffile.imwrite(path, image, photometric="rgb", tile=(32, 32))


def write_slides_table(folder, names):
    splits = ("train", "val", "test")
    rows = [
        {"slide_id": f"s{i}", "label": i % 2, "split": splits[i % 3], "path": name}
        for i, name in enumerate(names)
    ]
    write_table(folder / "slides.csv", rows)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["dots", "absolute", "link"])
def test_confine(how, tmp_path, capsys):
    data, outside = tmp_path / "data", tmp_path / "outside"
    data.mkdir()
    outside.mkdir()
    names = [f"{i}.tif" for i in range(6)]
    for seed, name in enumerate(names):
        write_slide(data / name, seed)
    write_slide(outside / "secret.tif")
    write_slides_table(data, names)
    flags = [*FLAGS, "--data", str(data / "slides.csv")]
    assert train.main([*flags, "--confine"]) == 0
    (data / "link.tif").symlink_to(outside / "secret.tif")
    names[2] = {
        "dots": "../outside/secret.tif",
        "absolute": str(outside / "secret.tif"),
        "link": "link.tif",
    }[how]
    write_slides_table(data, names)
    assert train.main(flags) == 0
    assert train.main([*flags, "--confine"]) == 1
    assert f"lies outside of {data}, and --confine is set" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "column", "flags"),
    [
        ("images.csv", "image", ["--task", "images", "--images", "folder", *SMALL]),
        ("bags.csv", "bag", ["--task", "mil", "--bags", "folder"]),
    ],
)
def test_confine_images_and_bags(name, column, flags, tmp_path, capsys):
    data = tmp_path / "data"
    data.mkdir()
    for folder, file in ((data, "a.npy"), (tmp_path, "secret.npy")):
        np.save(folder / file, np.zeros((64, 64, 3) if column == "image" else (4, 24, 24, 3), "u1"))
    rows = [
        {column: "a.npy", "label": i % 2, "split": s} for i, s in enumerate(("train", "val") * 2)
    ]
    rows += [{column: "../secret.npy", "label": i, "split": "test"} for i in range(2)]
    write_table(data / name, rows)
    command = [*flags, "--data", str(data), "--dry-run"]
    assert train.main(command) == 0
    assert train.main([*command, "--confine"]) == 1
    assert "secret.npy: lies outside of" in capsys.readouterr().err


def labelled(*labels):
    return Table.of("a.csv", [{"label": label} for label in labels])


def test_class_numbers_of_spreadsheets():
    """2.0 is 2, and comes before 10.0; names of classes stay as they are."""
    numbers = [f"{n}.0" for n in range(11)]
    found, names = splits.with_classes(labelled(*numbers, "3", "4,0"))
    assert names == tuple(map(str, range(11)))
    assert [row["label"] for row in found.rows] == [*range(11), 3, 4]
    found, _ = splits.with_classes(labelled("1.0"), ("0", "1"))
    assert found.rows[0]["label"] == 1
    for names in (None, ("1.0", "1.5")):
        _, classes = splits.with_classes(labelled("1.0", "1.5"), names)
        assert classes == ("1.0", "1.5")


def test_labels_that_differ_only_in_case_are_a_warning(capsys):
    _, classes = splits.with_classes(labelled("Red", "red", "blue"))
    assert classes == ("Red", "blue", "red")
    expected = "a.csv: the labels Red and red differ only in case, and count as different classes\n"
    assert capsys.readouterr().err.endswith(expected)


def test_class_without_items_to_validate_on_is_a_warning(capsys):
    part = [
        SimpleNamespace(ITEMS="bags", labels=np.array(labels)) for labels in ([0, 1], [1], [0, 1])
    ]
    splits.print_counts(Data.of(part, ("benign", "tumour")), str)
    expected = (
        "warning: none of the bags in val has the class benign, which its metrics cannot judge\n"
    )
    assert capsys.readouterr().err == expected


def test_skipped_items_are_counted_at_the_end(tmp_path, capsys):
    splits.print_failed(tmp_path)
    assert capsys.readouterr().err == ""
    splits.write_tables((), [("a", "is gone"), ("b", "is gone")], tmp_path)
    splits.print_failed(tmp_path)
    assert capsys.readouterr().err == f"2 skipped, see {tmp_path / 'failed.csv'}\n"


def test_class_without_training_items_is_a_warning(capsys):
    part = [
        SimpleNamespace(ITEMS="bags", labels=np.array(labels))
        for labels in ([0, 0], [1, 0], [0, 1])
    ]
    data = Data.of(part, ("benign", "tumour"))
    splits.print_counts(data, lambda part: "of 3 instances")
    out, err = capsys.readouterr()
    assert "train: 2 bags of 3 instances (2 benign, 0 tumour)" in out
    assert err == (
        "warning: none of the bags to train on has the class tumour, which cannot be learned\n"
    )


@pytest.mark.parametrize("how", ["column", "file"])
def test_a_case_of_slides_in_two_splits_is_refused(how, cohort_data, tmp_path):
    rows = [row | {"case_id": "P"} for row in rows_of(cohort_data)]
    options = {}
    if how == "column":
        rows = [row | {"split": "train" if n else "test"} for n, row in enumerate(rows)]
    else:
        first, *rest = [row["slide_id"] for row in rows]
        lines = [
            {"train": name, "val": "", "test": "" if n else first} for n, name in enumerate(rest)
        ]
        options["splits"] = str(write_table(tmp_path / "splits.csv", lines))
    write_table(cohort_data, rows)
    with pytest.raises(SourceError, match="the case 'P' is in the splits test and train"):
        cohort.read(cohort_settings(cohort_data, **options))
