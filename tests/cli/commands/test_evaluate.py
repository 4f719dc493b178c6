"""`tfbig evaluate`, `plan`, `report` and `train`: judging and planning what was trained, from the console."""

import csv
import json

import keras
import numpy as np
import pytest
import yaml
from samples import write_slide

from tfbig.cli.main import main
from tfbig.cli.tasks import segmentation
from tfbig.sources import ArraySource


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A segmentation run, by the console command; its slides are beside it."""
    folder = tmp_path_factory.mktemp("segmentation")
    for number in range(3):
        write_slide(folder / "slides" / f"{number}.tif", number)
    flags = ("--crop", "128x256", "--crops", "4", "--epochs", "1", "--out", str(folder / "run"))
    assert main(["train", *flags, "--data", str(folder / "slides")]) == 0
    return folder / "run"


@pytest.fixture(scope="module")
def bags(tmp_path_factory):
    """A run on bags."""
    folder = tmp_path_factory.mktemp("bags") / "run"
    flags = ("--num-bags", "6", "4", "4", "--instances", "8", "--epochs", "1")
    assert main(["train", "--task", "mil", *flags, "--out", str(folder)]) == 0
    return folder


def metrics(folder):
    return json.loads((folder / "metrics.json").read_text())


def rows_of(folder):
    return list(csv.DictReader((folder / "predictions.csv").read_text().splitlines()))


def test_overlaps_are_those_of_the_counts():
    labels = np.zeros((1100, 10, 1), np.uint8)
    labels[:600] = 1
    found = np.zeros((1100, 10, 1), np.float32)
    found[400:900] = 0.9
    known = segmentation.overlaps(ArraySource(labels), ArraySource(found))
    expected = {"dice": 400 / 1100, "iou": 200 / 900, "precision": 0.4, "sensitivity": 1 / 3}
    assert known == pytest.approx(expected)
    nothing = segmentation.overlaps(ArraySource(labels * 0), ArraySource(found * 0))
    assert set(nothing.values()) == {None}


def test_a_segmentation_is_judged_on_the_slide_it_never_saw(run, tmp_path, capsys):
    assert main(["evaluate", str(run), "--out", str(tmp_path / "own")]) == 0
    assert [row["slide"] for row in rows_of(tmp_path / "own")] == ["2.tif"]
    assert "judges" in capsys.readouterr().out
    found, trained = metrics(tmp_path / "own"), metrics(run)
    assert found["dice"] == pytest.approx(trained["val_dice"], abs=1e-6)
    assert (tmp_path / "own" / "report.html").exists()


def test_other_slides_are_all_judged(run, tmp_path):
    for number in range(2):
        write_slide(tmp_path / "others" / f"other {number}.tif", 10 + number)
    out = tmp_path / "judged"
    assert main(["evaluate", str(run), "--data", str(tmp_path / "others"), "--out", str(out)]) == 0
    rows = rows_of(out)
    assert [row["slide"] for row in rows] == ["other 0.tif", "other 1.tif"]
    assert metrics(out)["iou"] == pytest.approx(np.mean([float(row["iou"]) for row in rows]))
    assert {"other 0.png", "other 1.png", "versions.json"} <= {p.name for p in out.iterdir()}


def test_a_slide_that_cannot_be_read_is_left_out_of_a_segmentation(tmp_path, capsys):
    for number in (0, 2, 3):
        write_slide(tmp_path / "slides" / f"{number}.tif", number)
    (tmp_path / "slides" / "1.tif").write_bytes(b"II*\0 no slide")
    flags = (
        "--crop",
        "128x256",
        "--crops",
        "2",
        "--epochs",
        "1",
        "--data",
        str(tmp_path / "slides"),
    )
    assert main(["train", *flags, "--out", str(tmp_path / "again")]) == 3
    assert "left out 1.tif" in capsys.readouterr().err
    assert "1.tif" in (tmp_path / "again" / "failed.csv").read_text()
    assert main(["train", *flags, "--strict", "--out", str(tmp_path / "strict")]) == 1
    for number in (2, 3):
        (tmp_path / "slides" / f"{number}.tif").write_bytes(b"")
    assert main(["train", *flags, "--out", str(tmp_path / "one")]) == 1
    assert "holds 1 slides" in capsys.readouterr().err


def test_a_bag_model_is_judged_again_as_it_was(bags, tmp_path):
    assert main(["evaluate", str(bags), "--out", str(tmp_path)]) == 0
    assert yaml.safe_load((bags / "config.yaml").read_text())["class_names"] == [
        "negative",
        "positive",
    ]
    first, again = (
        {key: value for key, value in metrics(folder).items() if "test" in key}
        for folder in (bags, tmp_path)
    )
    assert first == again
    assert rows_of(bags) == rows_of(tmp_path)


def test_what_cannot_be_judged(tmp_path, capsys):
    assert main(["evaluate", str(tmp_path)]) == 1
    assert "is no run folder of train" in capsys.readouterr().err
    assert main(["evaluate"]) == 2
    assert main(["evaluate", "--help"]) == 0
    assert "tfbig evaluate RUN" in capsys.readouterr().out


def test_a_report_is_written_again(run, capsys):
    (run / "report.html").unlink()
    assert main(["report", str(run)]) == 0
    assert (run / "report.html").exists()
    assert main(["report", str(run / "views")]) == 1
    assert "is no folder of a run" in capsys.readouterr().err


def test_a_plan_of_a_run_a_file_and_a_known_network(run, tmp_path, capsys):
    assert main(["plan", str(run), "4096x8192", "--host-memory", "2GB"]) == 0
    told = capsys.readouterr().out
    assert "Plan for an image of 1 x 4096 x 8192 x 1" in told
    assert "It fits: a training step takes" in told
    assert main(["plan", str(run), str(run.parent / "slides" / "0.tif"), "--inference"]) == 0
    told = capsys.readouterr().out
    assert "1 x 256 x 384 x 1" in told
    assert "a prediction takes" in told
    image = keras.Input((None, None, 3))
    plain = keras.Model(image, keras.layers.Conv2D(2, 3, padding="same")(image))
    plain.save(tmp_path / "own.keras")
    assert main(["plan", str(tmp_path / "own.keras"), "512x512", "--batch-size", "2"]) == 0
    assert "2 x 512 x 512 x 3" in capsys.readouterr().out
    assert main(["plan", "MobileNet", "256x320", "--inference"]) == 0
    assert "1 x 256 x 320 x 3" in capsys.readouterr().out


def test_a_plan_that_cannot_be(run, tmp_path, capsys):
    """It says what would make it fit, and what is expected."""
    assert main(["plan", str(run), "65536x65536", "--host-memory", "100MB", "--disk", "0"]) == 1
    assert "Raise `host` to" in capsys.readouterr().err
    assert main(["plan", str(run), "0x12"]) == 1
    assert "0x12: is no size" in capsys.readouterr().err
    assert main(["plan", "ResNet5000", "512x512"]) == 1
    assert "no network of keras.applications: ConvNeXtBase" in capsys.readouterr().err


def test_a_plan_of_bags(bags, capsys):
    assert main(["plan", str(bags), "5000"]) == 0
    assert "5000" in capsys.readouterr().out
    assert main(["plan", str(bags), "512x512"]) == 1
    assert "expected tiles of a bag" in capsys.readouterr().err
