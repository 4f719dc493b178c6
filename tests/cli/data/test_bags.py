"""Bags of `--task mil`: tiles of slides, features, folders and composed bags."""

from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
from cli_runs import (
    MIL,
    SLIDE_BAGS,
    failures,
    metrics,
    predictions,
    run_mil,
)
from PIL import Image
from samples import ROOT

import train
from tfbig.cli.data import bags
from tfbig.cli.data.splits import SPLITS


@pytest.mark.slow
def test_tiles_of_slides(slide_bags_run):
    """Slides that cannot be read are named and skipped."""
    run = slide_bags_run
    assert run.code == 3
    assert "train: 2 bags of 35 to 35 instances (1 purple, 1 red)" in run.out
    assert "skipped s1: " in run.err
    lines = run.data.read_text().splitlines()
    line = next(n for n, text in enumerate(lines, start=1) if text.startswith("c10,"))
    assert f"skipped s10: {run.data}: line {line}: no file of slide s10. Check --slides." in run.err
    assert sorted(name for name, _ in metrics(run.folder)["left_out"]) == ["s1", "s10"]
    assert sorted(row["item"] for row in failures(run.folder)) == ["s1", "s10"]
    assert np.sum(metrics(run.folder)["confusion"]) == len(predictions(run.folder))
    assert (run.folder / "report.html").exists()


def test_strict(cohort_table, tmp_path, capsys):
    out = tmp_path / "run"
    flags = [*SLIDE_BAGS, "--data", str(cohort_table), "--strict", "--out", str(out)]
    assert train.main(flags) == 1
    assert "s1.tif" in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.slow
def test_coords(cohort_table, tiles):
    """`--coords` with tiles of `tfbig tile` gives the bags that training finds itself."""
    flags = [*SLIDE_BAGS, "--data", str(cohort_table)]
    with_coords = replace(train.settings_of([*flags, "--coords", str(tiles)]), mpp=None)
    both = [bags.load(settings) for settings in (with_coords, train.settings_of(flags))]
    for first, second in zip(*(data.test.bags for data in both), strict=True):
        assert first.name == second.name
        np.testing.assert_array_equal(
            first.read(0, first.shape[0]), second.read(0, second.shape[0])
        )
        np.testing.assert_array_equal(first.coords, second.coords)
    assert both[0].decided["mpp"] == 1.0


def write_features(folder, rows, broken=()):
    rng = np.random.default_rng(0)
    with (folder / "bags.csv").open("w") as file:
        file.write("bag,label,split\n")
        for number, (count, label, split) in enumerate(rows):
            name = f"slide{number}.h5"
            with h5py.File(folder / name, "w") as features:
                features["features"] = rng.normal(label, 1, (count, 12)).astype("float32")
                if number not in broken:
                    features["coords"] = 256 * np.stack(np.divmod(np.arange(count), 4), -1)
            file.write(f"{name},{label},{split}\n")


@pytest.mark.slow
def test_features_and_unusable_bags(tmp_path, capsys):
    data = tmp_path / "data"
    data.mkdir()
    rows = [(6 + i, i % 3, s) for i, s in enumerate(["train"] * 9 + ["val"] * 3 + ["test"] * 4)]
    rows[1] = (3, 1, "train")  # fewer than pseudo-bags
    write_features(data, rows, broken=(4,))
    flags = ("--bags", "folder", "--data", str(data), "--encoder", "none", "--mode", "device")
    assert run_mil(tmp_path / "out", *flags, "--model", "dtfd", "--width", "8") == 3
    message = capsys.readouterr().err
    assert "slide4.h5: has no 'coords'" in message
    assert "slide1.h5: has 3 instances, which cannot be split into 4 pseudo-bags" in message
    assert len(metrics(tmp_path / "out")["left_out"]) == 2
    assert np.shape(metrics(tmp_path / "out")["confusion"]) == (3, 3)


def test_bags_without_a_column_split(tmp_path):
    """They are split by shares, and bags of one patient stay together; the table has semicolons."""
    write_features(tmp_path, [(4, i % 2, "train") for i in range(20)])
    lines = [f"slide{i}.h5;{i % 2};{i // 4 * 2 + i % 2}" for i in range(20)]
    (tmp_path / "bags.csv").write_text("\n".join(["bag;label;patient", *lines]))
    flags = [*MIL, "--bags", "folder", "--data", str(tmp_path), "--encoder", "none"]
    data = bags.load(train.settings_of([*flags, "--mode", "device", "--shares", "60", "20", "20"]))
    number = {f"slide{i}.h5": i // 4 * 2 + i % 2 for i in range(20)}
    patients = [
        {number[Path(bag.name).name] for bag in getattr(data, split).bags} for split in SPLITS
    ]
    assert sorted(n for each in patients for n in each) == list(range(10))
    assert [len(each) for each in patients] == [6, 2, 2]


def recipe(name, data, **changes):
    """Return the settings of a recipe that reads a folder."""
    flags = ["--config", str(ROOT / f"recipes/{name}.yaml"), "--data", str(data)]
    return replace(train.settings_of(flags), **changes)


def test_bags_of_training_are_filled_with_white_tiles(tmp_path):
    """Up to the 256 tiles that are drawn; larger bags, and those of validation and test, stay as they are."""
    sizes = {"train": (3, 300), "val": (4,), "test": (5,)}
    lines = ["bag,label,split"]
    for split, size in ((split, size) for split, each in sizes.items() for size in each):
        np.save(tmp_path / f"{size}.npy", np.full((size, 2, 2, 3), 100, np.uint8))
        lines.append(f"{size}.npy,ISUP {size % 2},{split}")
    (tmp_path / "bags.csv").write_text("\n".join(lines))
    settings = recipe("big-layers-panda-cosine-as-coded", tmp_path, bags="folder")
    data = bags.load(settings)
    small, large = data.train.bags
    np.testing.assert_array_equal(small.read(0, 3), np.full((3, 2, 2, 3), 100))
    np.testing.assert_array_equal(small.read(3, 256), np.full((253, 2, 2, 3), 255))
    assert [bag.shape[0] for bag in (small, large, *data.val.bags, *data.test.bags)] == [
        *(256, 300, 4, 5)
    ]


@pytest.mark.slow
def test_folders_of_tiles(tmp_path):
    data = tmp_path / "data"
    lines = ["bag,label,split"]
    for number, split in enumerate(["train", "train", "val", "test", "test"]):
        folder = data / f"slide{number}"
        folder.mkdir(parents=True)
        for i in range(5):
            tile = np.random.default_rng(i).integers(0, 256, (16, 16, 3), np.uint8)
            tile[: 16 if i == 0 else 0] = 255  # the first is all white
            Image.fromarray(tile).save(folder / f"{i}.png")
        lines.append(f"slide{number},{number % 2},{split}")
    (data / "bags.csv").write_text("\n".join(lines))
    flags = ("--bags", "folder", "--data", str(data), "--min-grey", "0.6", "--fill")
    flags += ("--sample", "6", "--batch-size", "2", "--epochs", "1")
    assert run_mil(tmp_path / "out", *flags) == 0
    rows = predictions(tmp_path / "out")
    assert [int(row["instances"]) for row in rows] == [4, 4]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "bags.csv: no such file"),
        (
            "bag,label,split\n",
            "bags.csv: has no rows; expected a table with columns bag, label",
        ),
        (
            "bag,split\na,train\n",
            "bags.csv: line 1: has no column 'label'; expected a table with columns bag, label",
        ),
        (
            "bag,label,split\na.npy,x,train\nb,1,test\n",
            "bags.csv: line 3: label '1', but line 2 has 'x'",
        ),
        (
            "bag,label,split\na.npy,0,train\nb.npy,1000000,train\n",
            "bags.csv: line 3: label 1000000, but no line has label 1; expected 0, 1, 2, ... without gaps",
        ),
        (
            "bag,label,split\na.npy,0,train\nb.npy,1,train\n",
            "none of 2 bags of 2 cases is in split 'val'. Correct",
        ),
    ],
)
def test_invalid_table(content, message, tmp_path, capsys):
    if content:
        (tmp_path / "bags.csv").write_text(content)
    assert run_mil(tmp_path / "out", "--bags", "folder", "--data", str(tmp_path)) == 1
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_data_is_needed(tmp_path, capsys):
    assert train.main(["--task", "mil", "--out", str(tmp_path / "out")]) == 2
    assert "--task mil needs --data: a table of slides" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_labels_of_instances(tmp_path):
    """They are beside a bag, and are kept for the evaluation of its attention."""
    lines = ["bag,label,split"]
    for number, split in enumerate(SPLITS):
        np.save(tmp_path / f"{number}.npy", np.zeros((3, 4, 4, 3), np.uint8))
        lines.append(f"{number}.npy,{number % 2},{split}")
    np.save(tmp_path / "0.labels.npy", np.array([True, False, True]))
    np.save(tmp_path / "2.labels.npy", np.array([True]))
    (tmp_path / "bags.csv").write_text("\n".join([*lines, "0.npy,0,test"]))
    data = bags.load(train.settings_of(["--task", "mil", "--data", str(tmp_path)]))
    assert data.train.bags[0].labels.tolist() == [True, False, True]
    assert data.val.bags[0].labels is None
    ((_, reason),) = data.failed
    assert "2.npy: has labels of shape (1,) for 3 instances" in reason
