"""`train.py --task patchgd` from the command line to the run folder, on small images."""

import csv
import json
from argparse import Namespace

import keras
import numpy as np
import pytest
from PIL import Image
from samples import ROOT

import tfbig
import train
from tfbig.cli import settings
from tfbig.cli.data import images, splits
from tfbig.cli.tasks import classifier_training, patchgd, warm_start
from tfbig.models import encoders, latent

QUICK = [
    *(
        "--task",
        "patchgd",
        "--num-images",
        "20",
        "10",
        "10",
        "--canvas",
        "64",
        "--factors",
        "1",
        "1",
    ),
    *("--patch", "16", "--epochs", "2", "--batch-size", "5", "--latent", "8", "--head-width", "8"),
    *("--encoder", "small", "--head", "smaller", "--warm-start", "0"),
]
FILES = {
    *("checkpoints", "config.yaml", "history.csv", "kept.weights.h5", "learning_curve.png"),
    *("metrics.json", "model.keras", "predictions.csv", "confusion.png"),
    *("rates.json", "report.html", "versions.json"),
}
LATENT = {f"latent_{i}.png" for i in range(4)}
ATTENTION = {f"attention_{i}.png" for i in range(4)} | {"views"}


def run(out, *flags):
    return train.main([*QUICK, "--out", str(out), *flags])


def metrics(folder):
    return json.loads((folder / "metrics.json").read_text())


def history(folder):
    rows = csv.DictReader((folder / "history.csv").read_text().splitlines())
    return [{k: float(v) for k, v in row.items() if k != "seconds_per_step"} for row in rows]


@pytest.mark.parametrize(
    ("flags", "more"),
    [
        ((), LATENT),
        pytest.param(("--code", "vector"), LATENT, marks=pytest.mark.slow),
        pytest.param(("--mode", "device"), set(), marks=pytest.mark.slow),
        pytest.param(("--mode", "offload"), {"plan.txt"}, marks=pytest.mark.slow),
        pytest.param(
            ("--head", "transformer", "--sampler", "attention", "--sampling", "3"),
            LATENT | ATTENTION,
            marks=pytest.mark.slow,
        ),
    ],
)
def test_every_mode_leaves_a_whole_folder(flags, more, tmp_path):
    assert run(tmp_path / "out", *flags) == 0
    assert {p.name for p in (tmp_path / "out").iterdir()} == FILES | more
    found = metrics(tmp_path / "out")
    assert 0 <= found["test_accuracy"] <= 1
    assert np.sum(found["confusion"]) == 10
    rows = list(csv.DictReader((tmp_path / "out" / "predictions.csv").read_text().splitlines()))
    assert [row["image"] for row in rows] == [f"test {i}" for i in range(10)]
    for row in rows:
        shares = [float(v) for k, v in row.items() if k.startswith("probability")]
        assert sum(shares) == pytest.approx(1)
        assert int(row["predicted"]) == np.argmax(shares)
    loaded = keras.models.load_model(tmp_path / "out" / "model.keras", compile=False)
    assert loaded.count_params() > 0


@pytest.mark.slow
def test_a_run_goes_on_and_is_tested_again(tmp_path):
    """As if it had not stopped: optimizer, order of the images, sets of patches, learning rate by steps."""
    flags = ("--schedule", "linear", "--warmup", "1", "--sampling", "3", "--inner-accumulate", "2")
    assert run(tmp_path / "out", *flags, "--epochs", "3") == 0
    whole = history(tmp_path / "out")
    assert run(tmp_path / "again", "--test-only", str(tmp_path / "out")) == 0
    assert metrics(tmp_path / "again")["test_auc"] == metrics(tmp_path / "out")["test_auc"]
    flags = (*flags[4:], "--schedule", "constant", "--head", "abmil")  # one without dropout
    for name, epochs in (("part", "1"), ("full", "3")):
        assert run(tmp_path / name, *flags, "--epochs", epochs) == 0
    assert run(tmp_path / "part", "--head", "abmil", "--resume", "--epochs", "3") == 0
    for found, expected in zip(history(tmp_path / "part"), history(tmp_path / "full"), strict=True):
        assert found == pytest.approx(expected, rel=1e-4)
    assert len(whole) == 3


@pytest.mark.slow
def test_a_backbone_that_was_trained_before(tmp_path, capsys):
    assert run(tmp_path / "plain", "--mode", "device", "--epochs", "1") == 0
    assert run(tmp_path / "out", "--backbone", str(tmp_path / "plain"), "--lr", "1e-12") == 0
    plain, made = (
        keras.models.load_model(tmp_path / name / "model.keras", compile=False)
        for name in ("plain", "out")
    )
    before, after = plain.get_layer("small"), made.encoder.get_layer("small")
    for a, b in zip(before.get_weights(), after.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)


@pytest.mark.parametrize(
    "mode",
    ["patchgd", *(pytest.param(mode, marks=pytest.mark.slow) for mode in ("device", "offload"))],
)
def test_a_warm_start_knows_single_digits(mode, tmp_path, capsys, monkeypatch):
    """The trunk of what is saved is that which learned them; a run that goes on has had them."""
    monkeypatch.setattr(warm_start, "DIGITS", 320)
    learned, learn = [], warm_start.learn

    def learn_and_note(trunk, *rest):
        learn(trunk, *rest)
        learned.append(trunk.get_weights())

    monkeypatch.setattr(warm_start, "learn", learn_and_note)
    flags = ("--mode", mode, "--epochs", "1", "--lr", "1e-12", "--warm-start")
    assert run(tmp_path / "out", *flags, "3") == 0
    told = capsys.readouterr().out
    assert "warm start: 320 single digits of 64 x 64, 3 epochs" in told
    lines = [line for line in told.partition("warm start")[2].splitlines() if "- loss" in line]
    losses = [float(line.split("loss: ")[1].split()[0]) for line in lines]
    assert losses[2] < losses[0]
    trunk = patchgd.trunk_of(
        keras.models.load_model(tmp_path / "out" / "model.keras", compile=False),
        Namespace(mode=mode, encoder="small"),
    )
    for found, expected in zip(trunk.get_weights(), learned[0], strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-6)
    assert run(tmp_path / "out", *flags, "3", "--resume") == 0
    assert "- loss" not in capsys.readouterr().out  # nothing is learned again
    for found, expected in zip(learned[1], learned[0], strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("size", "stride", "codes"), [(64, 32, (8, 8)), (80, 32, (3, 3)), (64, 16, (3, 3))]
)
def test_attention_is_drawn_by_code_where_maps_tile_the_image(size, stride, codes):
    net = encoders.make("small", (32, 32, 1), latent=8, pooled=False)
    model = tfbig.PatchGD(net, latent.make_head("abmil", 3, latent=8), 32, stride)
    image = tfbig.sources.ArraySource(np.zeros((size, size, 1), np.uint8))
    bag, attention = patchgd.attention_by_code(
        model, image, model.latent(image.read(0, size)[None])
    )
    assert bag.grid.cells == codes
    assert attention.shape == (np.prod(codes),)
    assert attention.sum() == pytest.approx(1, abs=1e-5)


def write_images(folder, rows, columns):
    folder.mkdir()
    for number, row in enumerate(rows):
        pixels = np.random.default_rng(number).integers(0, 256, (40 + number, 50, 3), np.uint8)
        Image.fromarray(pixels).save(folder / row[0])
    lines = [",".join(columns), *(",".join(map(str, row)) for row in rows)]
    (folder / "images.csv").write_text("\n".join(lines))


@pytest.mark.parametrize("side", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_folder_of_images(side, tmp_path, capsys):
    splits_of = ["train"] * 6 + ["val"] * 2 + ["test"] * 2
    rows = [(f"{i}.png", i % 2, split) for i, split in enumerate(splits_of)]
    write_images(tmp_path / "data", rows, ("image", "label", "split"))
    (tmp_path / "data" / "3.png").write_bytes(b"no image")
    flags = ("--side", "64") if side else ("--batch-size", "1")
    assert (
        run(tmp_path / "out", "--images", "folder", "--data", str(tmp_path / "data"), *flags) == 3
    )
    assert "3.png: cannot be decoded" in capsys.readouterr().err
    assert len(metrics(tmp_path / "out")["left_out"]) == 1
    assert np.shape(metrics(tmp_path / "out")["confusion"]) == (2, 2)


def test_patients_are_in_one_split():
    rows = [{"label": str(p % 3), "patient": f"p{p}"} for p in range(60) for _ in range(1 + p % 4)]
    found = splits.split_rows(rows, seed=1)
    where = {}
    for row in found:
        where.setdefault(row["patient"], set()).add(row["split"])
    assert all(len(s) == 1 for s in where.values())
    for label in "012":
        own = {row["patient"]: row["split"] for row in found if row["label"] == label}
        counts = [list(own.values()).count(split) for split in splits.SPLITS]
        assert counts == [14, 2, 4]
    assert found == splits.split_rows(rows, seed=1)
    assert found != splits.split_rows(rows, seed=2)
    alone = splits.split_rows([{"label": "0"}] * 10)
    assert sorted(row["split"] for row in alone) == ["test"] * 2 + ["train"] * 7 + ["val"]


def test_class_folders_with_mixing(tmp_path):
    for split, count in (("train", 10), ("val", 3)):
        for name in ("cat", "dog"):
            folder = tmp_path / split / name
            folder.mkdir(parents=True)
            for i in range(count):
                pixels = np.random.default_rng(i).integers(0, 256, (30, 40, 3), np.uint8)
                Image.fromarray(pixels).save(folder / f"{i}.jpg")
    flags = ("--images", "pictures", "--data", str(tmp_path), "--side", "48", "--stride", "8")
    assert run(tmp_path / "out", *flags, "--augment", "a3", "--epochs", "1") == 0
    assert np.isfinite(metrics(tmp_path / "out")["loss"])
    found = images.load(settings.parse([*QUICK, *flags], train.TASKS))
    assert [len(getattr(found, s).labels) for s in splits.SPLITS] == [18, 2, 6]
    assert found.classes == ("cat", "dog")


@pytest.mark.parametrize("mode", ["patchgd", "device"])
def test_series(mode, tmp_path):
    rng = np.random.default_rng(0)
    for part, count in (("train", 20), ("test", 8)):
        folder = tmp_path / part / "Inertial Signals"
        folder.mkdir(parents=True)
        for name in images.SIGNALS:
            np.savetxt(folder / f"{name}_{part}.txt", rng.normal(size=(count, 128)))
        np.savetxt(tmp_path / part / f"y_{part}.txt", np.arange(count) % 6 + 1, fmt="%d")
    recipe = str(ROOT / "recipes" / "patchgd-har-as-published.yaml")
    flags = ["--config", recipe, "--data", str(tmp_path), "--out", str(tmp_path / "out")]
    assert train.main([*flags, "--epochs", "1", "--mode", mode]) == 0
    assert np.sum(metrics(tmp_path / "out")["confusion"]) == 8
    (tmp_path / "test" / "y_test.txt").unlink()
    assert train.main([*flags[:-1], str(tmp_path / "other"), "--epochs", "1"]) == 1


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--images", "digits"), "--images digits needs --data FOLDER"),
        (("--images", "folder", "--data", "nowhere"), "images.csv: there is no such file"),
        (("--images", "pictures", "--data", "nowhere"), "has 0 folders of classes"),
        (("--images", "har", "--data", "nowhere"), "there is no such file of UCI HAR"),
        (
            ("--images", "pictures", "--warm-start", "1"),
            "it is by single digits, those of UltraMNIST",
        ),
        (("--encoder", "series", "--mode", "offload"), "--encoder series: series fit in memory"),
        (("--patch", "65"), "smaller than a patch"),
        (("--factors", "1", "9"), "do not fit an image of 64"),
        (("--schedule", "constant", "--warmup", "1"), "--warmup goes with"),
    ],
)
def test_what_cannot_be_ends_in_one_line(flags, message, tmp_path, capsys):
    assert run(tmp_path / "out", *flags) == 1
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error


def test_the_published_learning_rate():
    """From 0 to the peak in two epochs, then linear to half of it in the other 98."""
    flags = ["--lr", "1e-3", "--schedule", "linear", "--warmup", "2", "--epochs", "100"]
    found = settings.parse(["--task", "patchgd", *flags], train.TASKS)
    rates = [classifier_training.falling(found, epoch) for epoch in (0, 1, 2, 51, 100)]
    assert rates == pytest.approx([0, 5e-4, 1e-3, 7.5e-4, 5e-4])
    found.schedule = "cosine"
    assert classifier_training.falling(found, 51) == pytest.approx(5e-4)
    callback = classifier_training.PerStep(lambda epochs: epochs, 4)
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    callback.set_model(model)
    callback.on_epoch_begin(3)
    callback.on_train_batch_begin(2)
    assert float(model.optimizer.learning_rate) == 3.5
