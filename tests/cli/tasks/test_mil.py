"""`--task mil` from the command line to the run folder, in every mode."""

import re
from dataclasses import replace
from pathlib import Path

import keras
import numpy as np
import pytest
from cli_runs import SLIDE_BAGS, history, metrics, predictions, run_mil
from samples import ROOT

import train
from tfbig import mil as bags
from tfbig import sources
from tfbig.cli.data.run_data import Data
from tfbig.cli.main import main
from tfbig.cli.settings.tasks import MILSettings
from tfbig.cli.tasks import mil
from tfbig.cli.tasks.class_target import ClassTarget
from tfbig.data.worker_shards import Shard
from tfbig.models import encoders
from tfbig.models.pathology_encoders import PATHOLOGY_ENCODERS
from tfbig.models.vision_transformer import ViT

FILES = {
    *("checkpoints", "config.yaml", "history.csv", "kept.weights.h5", "learning_curve.png"),
    *("metrics.json", "model.keras", "plan.txt", "predictions.csv", "confusion.png"),
    *("classes.csv", "curves.png"),
    *("attention_0.png", "attention_1.png", "rates.json", "report.html", "versions.json", "views"),
    ".tfbig-files",
    "MODEL_CARD.md",
}
slow = pytest.mark.slow


@pytest.mark.parametrize(
    "mode",
    ["accumulate", *(pytest.param(m, marks=slow) for m in ("device", "offload", "frozen"))],
)
def test_run_folder(mode, request, tmp_path):
    shared = {"accumulate": "mil_run", "device": "device_run"}.get(mode)
    made = request.getfixturevalue(shared) if shared else None
    out = made.folder if made else tmp_path / "out"
    assert (made.code if made else run_mil(out, "--mode", mode)) == 0
    expected = FILES - {"plan.txt"} if mode == "device" else FILES
    assert {p.name for p in out.iterdir()} == expected
    results = metrics(out)
    assert np.sum(results["confusion"]) == 4
    assert results["test_accuracy"] == np.trace(results["confusion"]) / 4
    rows = predictions(out)
    assert [Path(row["bag"]).name for row in rows] == [f"test-{i}.npy" for i in range(4)]
    for row in rows:
        shares = [float(v) for k, v in row.items() if k.startswith("probability")]
        assert sum(shares) == pytest.approx(1)
        assert row["predicted"] == ("negative", "positive")[np.argmax(shares)]


@slow
def test_modes_agree(tmp_path):
    for mode in ("accumulate", "device"):
        flags = ("--mode", mode, "--epochs", "1", "--optimizer", "adam", "--epsilon", "1e-2")
        assert run_mil(tmp_path / mode, *flags) == 0
    a, b = metrics(tmp_path / "accumulate"), metrics(tmp_path / "device")
    assert abs(a["loss"] - b["loss"]) < 1e-4
    assert abs(a["val_loss"] - b["val_loss"]) < 1e-3


@slow
@pytest.mark.parametrize(
    "flags",
    [
        ("--model", "dtfd", "--width", "16", "--distillation", "MaxMinS", "--two-tiers"),
        ("--model", "attention", "--width", "16", "--batch-size", "2", "--class-weights"),
        ("--model", "gated", "--norm", "none", "--keep", "window", "--window", "2"),
        ("--model", "mean", "--augment", "--sample", "0.5", "--keep", "best", "--monitor", "qwk"),
        ("--optimizer", "lookahead_radam", "--accumulate", "2", "--sum", "--clip", "1"),
        ("--optimizer", "demon_adamw", "--schedule", "exponential", "--keep", "last"),
        ("--precision", "mixed_bfloat16", "--optimizer", "coupled_adam", "--decay", "1e-4"),
        ("--eval-sample", "4", "--eval-repeats", "3", "--model", "max", "--min-grey", "0.1"),
    ],
)
def test_other_settings(flags, tmp_path):
    assert run_mil(tmp_path / "out", *flags, "--epochs", "1") == 0
    results = metrics(tmp_path / "out")
    correct, count = np.trace(results["confusion"]), np.sum(results["confusion"])
    assert results["test_accuracy"] == pytest.approx(correct / count)
    assert np.isfinite(results["test_auc"])


@pytest.mark.slow
def test_resume_and_test_only(tmp_path):
    """A resumed run equals a whole one: optimizer, order and samples of the bags, best epoch so far."""
    flags = ("--schedule", "constant", "--sample", "6", "--epochs", "2")
    assert run_mil(tmp_path / "out", *flags) == 0
    assert run_mil(tmp_path / "out", "--resume", "--epochs", "3") == 0
    assert run_mil(tmp_path / "whole", *flags[:4], "--epochs", "3") == 0
    for row, expected in zip(history(tmp_path / "out"), history(tmp_path / "whole"), strict=True):
        assert row == pytest.approx(expected, rel=1e-4)
    best = [metrics(tmp_path / name)["test_auc"] for name in ("out", "whole")]
    assert best[0] == best[1]
    assert run_mil(tmp_path / "again", "--test-only", str(tmp_path / "out")) == 0
    before, after = metrics(tmp_path / "out"), metrics(tmp_path / "again")
    assert after["test_accuracy"] == before["test_accuracy"]
    assert after["test_auc"] == before["test_auc"]


@slow
def test_head_with_two_outputs(tmp_path):
    """CLAM logs both losses, and predicts by the first output."""
    flags = ("--model", "clam_sb", "--width", "8", "--hidden", "4", "--mode", "frozen")
    assert run_mil(tmp_path / "out", *flags) == 0
    (row,) = history(tmp_path / "out")
    both = 0.7 * float(row["bag_loss"]) + 0.3 * float(row["instances_loss"])
    assert float(row["loss"]) == pytest.approx(both, rel=1e-4)
    assert len(predictions(tmp_path / "out")) == 4


@slow
@pytest.mark.parametrize(
    ("model", "others"),
    [
        ("clam_sb", ("--instance-samples", "3", "--subtyping")),
        ("clam_mb", ("--instance-loss", "svm", "--bag-weight", "0.5")),
        ("dsmil", ("--mode", "device")),
        ("abmilx", ("--precision", "mixed_bfloat16")),
        ("transformer", ("--mode", "frozen")),
    ],
)
def test_train_resume_evaluate_and_predict(model, others, cohort_table, tmp_path):
    """Code 3 says that damaged slides were skipped."""
    flags = [*SLIDE_BAGS, "--data", str(cohort_table), "--folds", "3", "--fold", "0"]
    out, again = tmp_path / "out", tmp_path / "again"
    flags += ["--model", model, *others]
    flags += [] if model in ("abmilx", "transformer") else ["--hidden", "8"]
    flags += [] if model == "dsmil" else ["--width", "16"]
    assert train.main([*flags, "--out", str(out)]) == 3
    assert train.main([*flags, "--out", str(out), "--resume", "--epochs", "2"]) == 3
    assert len(history(out)) == 2
    assert np.isfinite([float(v) for row in history(out) for v in row.values()]).all()
    assert train.main([*flags, "--test-only", str(out), "--out", str(again)]) == 0
    assert metrics(again)["test_accuracy"] == metrics(out)["test_accuracy"]
    slide = next(cohort_table.parent.rglob("s4.tif"))
    assert main(["predict", str(out), str(slide), "--out", str(tmp_path / "predicted")]) == 0
    (row,) = predictions(tmp_path / "predicted")
    assert float(row["probability_purple"]) + float(row["probability_red"]) == pytest.approx(1)


@slow
def test_lora(tmp_path, capsys, monkeypatch):
    """A run of low-rank changes resumes as if it had not stopped, and is evaluated from its merged weights."""
    small = ViT(patch=8, width=8, depth=1, heads=2)
    entry = replace(PATHOLOGY_ENCODERS["uni"], network=small)
    monkeypatch.setitem(PATHOLOGY_ENCODERS, "uni", entry)
    flags = ("--encoder", "uni", "--lora", "2", "--schedule", "constant", "--lr", "0.05")
    assert run_mil(tmp_path / "out", *flags) == 0
    assert "LoRA of rank 2: " in capsys.readouterr().out
    assert run_mil(tmp_path / "out", "--resume", "--epochs", "2") == 0
    assert run_mil(tmp_path / "whole", *flags, "--epochs", "2") == 0
    for row, expected in zip(history(tmp_path / "out"), history(tmp_path / "whole"), strict=True):
        assert row == pytest.approx(expected, rel=1e-4)
    assert run_mil(tmp_path / "again", *flags, "--test-only", str(tmp_path / "out")) == 0
    assert metrics(tmp_path / "again")["test_auc"] == metrics(tmp_path / "out")["test_auc"]


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (("--lora", "2"), "--lora 2: belongs to --encoder uni or .*; this run has --encoder small"),
        (("--stain", "macenko"), "--stain macenko: belongs to --bags slides; this run has --bags"),
    ],
)
def test_refusals(flags, text, tmp_path, capsys):
    assert run_mil(tmp_path / "out", *flags) == 2
    assert re.search(text, capsys.readouterr().err)


def test_no_changes_of_a_frozen_encoder(tmp_path, capsys):
    flags = ("--lora", "2", "--encoder", "uni", "--mode", "frozen")
    assert run_mil(tmp_path / "out", *flags) == 2
    assert "--lora 2: --mode frozen trains no encoder" in capsys.readouterr().err


def test_losses_of_two_outputs():
    """Weights of both losses are published ones, or those of --bag-weight; --sum multiplies them."""
    for settings, expected in (
        (MILSettings(model="clam_sb"), (0.7, 0.3)),
        (MILSettings(model="clam_mb"), (0.7, 0.3)),
        (MILSettings(model="dsmil"), (0.5, 0.5)),
        (MILSettings(model="clam_mb", bag_weight=0.9, accumulate=2, sum=True), (1.8, 0.2)),
        (MILSettings(model="dtfd"), (1, 1)),
    ):
        losses, weights = mil.MIL().loss(settings, ClassTarget(("no", "yes")))
        assert list(losses) == ["bag", mil.SECOND_OUTPUTS[settings.model]]
        assert list(weights.values()) == pytest.approx(expected)


def test_encoder_without_norm():
    plain, without = (encoders.make("resnet18", (32, 32, 3), norm=n) for n in (True, False))
    kinds = [type(layer).__name__ for layer in without._flatten_layers()]
    assert "BatchNormalization" not in kinds
    assert without.output_shape == plain.output_shape
    assert without.count_params() == plain.count_params() - 4 * 4800
    assert isinstance(without, keras.Model)


@pytest.mark.parametrize(
    ("name", "sample", "sizes"),
    [
        ("big-layers-panda-cosine-as-published", 256, (300, 257, 1400, 256)),
        ("big-layers-camelyon17-as-published", 512, (600, 513, 3000, 512)),
        ("big-layers-camelyon17-frozen", 1024, (1025, 2000)),
    ],
)
def test_tiles_of_recipes(name, sample, sizes):
    """Each slide gives as many different tiles, others in each epoch, and all of its tiles in the test."""
    settings = train.settings_of(["--config", str(ROOT / "recipes" / f"{name}.yaml")])
    tiles = tuple(
        sources.open_bag(np.arange(n, dtype="float32").reshape(n, 1, 1, 1)) for n in sizes
    )
    part = bags.BagSet(tiles, np.arange(len(sizes)))
    epochs = []
    for epoch in range(2):
        drawn = {}
        batches = mil.MIL().batches(settings, Data.of([part]), part, Shard(epoch), learns=True)
        for handles, labels in batches:
            for handle, label in zip(handles.numpy(), labels.numpy(), strict=True):
                bag = sources.resolve(handle.decode())
                drawn[int(label)] = frozenset(bag.read(0, bag.shape[0]).ravel().tolist())
        assert [len(drawn[label]) for label in range(len(sizes))] == [sample] * len(sizes)
        assert all(drawn[label] <= set(range(size)) for label, size in enumerate(sizes))
        epochs.append(drawn)
    larger = [label for label, size in enumerate(sizes) if size > sample + 1]
    assert all(epochs[0][label] != epochs[1][label] for label in larger)
    assert bags.sample_size(tiles[-1], settings.eval_sample) == sizes[-1]


def test_weights_of_bags():
    """Classes weigh inversely to their frequency, bags as their number of tiles; `fit` gets both with the labels."""
    sizes, labels = (2, 4, 6, 12), np.array([0, 0, 0, 1])
    tiles = tuple(sources.open_bag(np.zeros((n, 8, 8, 3), np.uint8)) for n in sizes)
    data = Data.of([bags.BagSet(tiles, labels)] * 3, ("no", "yes"))
    classes, shares = np.array([0.25, 0.25, 0.25, 0.75]), np.array(sizes) / 6
    assert mil.MIL().weights(MILSettings(), data) is None
    for settings, expected in (
        (MILSettings(class_weights=True), classes),
        (MILSettings(tile_weights=True), shares),
        (MILSettings(tile_weights=True, class_weights=True, sample=2), classes * shares),
    ):
        weights = mil.MIL().weights(settings, data)
        np.testing.assert_allclose(weights, expected, rtol=1e-6)
        batches = list(mil.MIL().batches(settings, data, data.train, weights=weights))
        np.testing.assert_array_equal([int(y[0]) for _, y, _ in batches], labels)
        np.testing.assert_array_equal([w.numpy()[0] for _, _, w in batches], weights)
