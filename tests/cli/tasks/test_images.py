"""`--task images` from the command line to the run folder, on small images."""

from pathlib import Path

import keras
import numpy as np
import pytest
import target_images
from cli_runs import (
    WHOLE_SLIDES,
    history,
    metrics,
    predictions,
    rows_of,
    run_patchgd,
    whole_slides,
    write_table,
)

import tfbig
import train
from tfbig.cli.main import main
from tfbig.cli.tasks import images
from tfbig.models import encoders, latent
from tfbig.results import judgement

FILES = {
    *("checkpoints", "config.yaml", "history.csv", "kept.weights.h5", "learning_curve.png"),
    *("metrics.json", "model.keras", "predictions.csv", "confusion.png"),
    *("classes.csv", "curves.png"),
    *("MODEL_CARD.md", "rates.json", "report.html", "slides.csv", "versions.json", ".tfbig-files"),
}
LATENT = {f"latent_{i}.png" for i in range(4)}
ATTENTION = {f"attention_{i}.png" for i in range(4)} | {"views"}


@pytest.mark.slow
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
def test_run_folder(flags, more, tmp_path):
    assert run_patchgd(tmp_path / "out", *flags) == 0
    assert {p.name for p in (tmp_path / "out").iterdir()} == FILES | more
    results = metrics(tmp_path / "out")
    assert np.sum(results["confusion"]) == 10
    assert results["test_accuracy"] == pytest.approx(np.trace(results["confusion"]) / 10)
    rows = predictions(tmp_path / "out")
    assert [Path(row["image"]).name for row in rows] == [f"test-{i}.png" for i in range(10)]
    for row in rows:
        shares = [float(v) for k, v in row.items() if k.startswith("probability")]
        assert sum(shares) == pytest.approx(1)
        assert int(row["predicted"]) == np.argmax(shares)
    loaded = keras.models.load_model(tmp_path / "out" / "model.keras", compile=False)
    sizes = [np.size(weight) for weight in loaded.get_weights()]
    assert sum(sizes) == loaded.count_params() > 1000


MERITS = {
    "survival": ("concordance", "concordance"),
    "regression": ("spearman", "mae"),
    "multilabel": ("auc", "auc"),
}
"""Targets, a figure of merit that is 1 at best, and one that saved predictions give."""


@pytest.mark.slow
@pytest.mark.parametrize("target", MERITS)
def test_targets(target, tmp_path):
    """Each is learned from images, judged as it is from bags, and evaluated again to the same."""
    data, run = target_images.write(tmp_path / "data", target), tmp_path / "run"
    assert target_images.run(data, run, target) == 0
    found, (merit, saved) = metrics(run), MERITS[target]
    assert found[f"test_{merit}"] > 0.75
    measured = judgement.means([judgement.read(run)])
    assert measured == pytest.approx({key: found[key] for key in measured}, rel=1e-9)
    assert f"test_{saved}" in measured
    again = tmp_path / "again"
    assert main(["evaluate", str(run), "--out", str(again)]) == 0
    assert predictions(again) == predictions(run)
    assert {name: metrics(again)[name] for name in measured} == {n: found[n] for n in measured}


@pytest.mark.slow
def test_cox_streamed_equals_plain(tmp_path):
    """A risk set of images, streamed one after the other, has the gradient of plain Keras, and is learned."""
    data, found = target_images.write(tmp_path / "data", "survival"), {}
    flags = ("--survival-loss", "cox", "--batch-size", "1", "--accumulate", "8", "--epochs", "2")
    for mode in ("offload", "device"):
        run = tmp_path / mode
        flags = (*flags, "--precision", "float64", "--mode", mode)
        assert target_images.run(data, run, "survival", *flags) == 0
        found[mode] = [[row["loss"], row["val_loss"]] for row in history(run)]
        assert metrics(run)["test_concordance"] > 0.75
    np.testing.assert_allclose(found["offload"], found["device"], rtol=1e-10)


@pytest.mark.slow
def test_cox_of_a_batch(tmp_path):
    """A batch is the risk set of --mode patchgd."""
    data, run = target_images.write(tmp_path / "data", "survival"), tmp_path / "run"
    assert target_images.run(data, run, "survival", "--survival-loss", "cox") == 0
    assert metrics(run)["test_concordance"] > 0.75
    assert metrics(run)["median_risk"] < max(float(row["risk"]) for row in predictions(run))


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["patchgd", "offload"])
def test_survival_of_whole_slides(mode, cohort_table, tmp_path, capsys):
    """Slides of any size are trained for survival, and predicted to the same risks."""
    rows = [
        {**row, "case_id": f"P{n}", "time": n % 7 + 1, "event": int(n % 3 > 0)}
        for n, row in enumerate(rows_of(cohort_table))
    ]
    table = write_table(tmp_path / "slides.csv", [{k: v for k, v in r.items() if k} for r in rows])
    run, out = tmp_path / "run", tmp_path / "out"
    command = [*whole_slides(mode), "--head", "abmil", "--data", str(table)]
    command += ["--slides", str(cohort_table.parent), "--target", "survival", "--time-bins", "2"]
    command += ["--shares", "60", "20", "20"]
    assert train.main([*command, "--out", str(run)]) == 3
    expected = {row["image"]: row for row in predictions(run)}
    assert main(["predict", str(run), *expected, "--out", str(out)]) == 0
    assert "risk" in capsys.readouterr().out
    for row, before in zip(predictions(out), expected.values(), strict=True):
        assert float(row["risk"]) == pytest.approx(float(before["risk"]), abs=1e-5)
    assert "Survival" in (run / "report.html").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["patchgd", "offload"])
def test_whole_slides(mode, whole_slides_run):
    """Slides are read by handle, in patches or streamed, with augmentation."""
    run = whole_slides_run(mode)
    assert run.code == 3
    assert np.sum(metrics(run.folder)["confusion"]) == len(predictions(run.folder)) >= 3
    assert len(metrics(run.folder)["left_out"]) == 2


@pytest.mark.slow
def test_resume_and_test_only(tmp_path):
    """A resumed run equals a whole one: optimizer, order of images, sets of patches, learning rate by steps."""
    flags = ("--schedule", "linear", "--warmup", "1", "--sampling", "3", "--inner-accumulate", "2")
    assert run_patchgd(tmp_path / "out", *flags, "--epochs", "3") == 0
    whole = history(tmp_path / "out")
    assert run_patchgd(tmp_path / "again", "--test-only", str(tmp_path / "out")) == 0
    assert metrics(tmp_path / "again")["test_auc"] == metrics(tmp_path / "out")["test_auc"]
    flags = (*flags[4:], "--schedule", "constant", "--head", "abmil")  # one without dropout
    for name, epochs in (("part", "1"), ("full", "3")):
        assert run_patchgd(tmp_path / name, *flags, "--epochs", epochs) == 0
    assert run_patchgd(tmp_path / "part", "--head", "abmil", "--resume", "--epochs", "3") == 0
    for row, expected in zip(history(tmp_path / "part"), history(tmp_path / "full"), strict=True):
        assert row == pytest.approx(expected, rel=1e-4)
    assert len(whole) == 3


@pytest.mark.slow
@pytest.mark.parametrize(
    "flags",
    [
        ("--inner-sampling", "2"),
        ("--code", "vector", "--head", "abmil"),
    ],
)
def test_hierarchy(flags, tmp_path):
    """A patch of 32 has a latent grid of its own, of patches of 16; a saved run is evaluated as it was."""
    flags = ("--patch", "32", "--inner-patch", "16", "--epochs", "1", *flags)
    assert run_patchgd(tmp_path / "out", *flags) == 0
    loaded = keras.models.load_model(tmp_path / "out" / "model.keras", compile=False)
    grid = loaded.encoder.get_layer(images.INNER_GRID)
    assert (grid.patch, loaded.patch, loaded.encoder.output_shape) == (
        (16, 16),
        (32, 32),
        (None, 8),
    )
    assert main(["evaluate", str(tmp_path / "out"), "--out", str(tmp_path / "again")]) == 0
    assert metrics(tmp_path / "again")["test_auc"] == metrics(tmp_path / "out")["test_auc"]


@pytest.mark.slow
def test_start_from_a_baseline(tmp_path):
    assert run_patchgd(tmp_path / "plain", "--mode", "device", "--epochs", "1") == 0
    flags = ("--encoder-weights", str(tmp_path / "plain"), "--lr", "1e-12")
    assert run_patchgd(tmp_path / "out", *flags) == 0
    plain, trained = (
        keras.models.load_model(tmp_path / name / "model.keras", compile=False)
        for name in ("plain", "out")
    )
    before, after = plain.get_layer("small"), trained.encoder.get_layer("small")
    for a, b in zip(before.get_weights(), after.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)


@pytest.mark.parametrize(
    ("size", "stride", "codes"), [(64, 32, (8, 8)), (80, 32, (3, 3)), (64, 16, (3, 3))]
)
def test_attention_by_code(size, stride, codes):
    net = encoders.make("small", (32, 32, 1), latent=8, pooled=False)
    model = tfbig.PatchGD(net, latent.make_head("abmil", 3, latent=8), 32, stride)
    image = tfbig.sources.ArraySource(np.zeros((size, size, 1), np.uint8))
    bag, attention = images.attention_by_code(model, image, model.latent(image.read(0, size)[None]))
    assert bag.grid.cells == codes
    assert attention.shape == (np.prod(codes),)
    assert attention.sum() == pytest.approx(1, abs=1e-5)


def test_data_is_needed(tmp_path, capsys):
    assert train.main(["--task", "images", "--out", str(tmp_path / "out")]) == 2
    assert "--task images needs --data: a table of slides" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("flags", "code", "message"),
    [
        (("--images", "folder", "--data", "."), 1, "images.csv: no such file"),
        (
            ("--images", "pictures", "--data", "recipes"),
            1,
            "expected a folder of images for each of two or more classes",
        ),
        (
            ("--encoder", "series", "--augment", "slide"),
            2,
            "--augment is for images, not for --encoder series",
        ),
        (
            ("--patch", "65"),
            2,
            "is 64 x 64 pixels, smaller than a patch. Use --patch 64, or remove the image.",
        ),
        (("--patch", "4"), 2, "a patch of 4 x 4 pixels is too small for --encoder small"),
        (("--inner-patch", "5"), 2, "--inner-patch 5: does not tile a patch of 16"),
        (("--schedule", "constant", "--warmup", "1"), 2, "--warmup needs"),
    ],
)
def test_errors(flags, code, message, tmp_path, capsys):
    assert run_patchgd(tmp_path / "out", *flags) == code
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error


@pytest.mark.slow
def test_whole_slides_without_background(cohort_table, tmp_path, capsys):
    """A run masks its slides, and `predict` masks slides as its run did."""
    run, out = tmp_path / "run", tmp_path / "out"
    flags = ["--mode", "offload", "--head", "smaller", "--augment", "slide", "--background", "skip"]
    flags = [*WHOLE_SLIDES, *flags, "--data", str(cohort_table), "--out", str(run), "--quiet"]
    assert train.main(flags) == 3  # a slide is damaged
    assert (
        "background has one colour; share of the foreground: s0.tif 0." in capsys.readouterr().out
    )
    rows = predictions(run)
    assert all(0.2 < float(row["foreground"]) < float(row["computed"]) for row in rows)
    slides = [str(next(cohort_table.parent.rglob(Path(row["image"]).name))) for row in rows]
    assert main(["predict", str(run), *slides, "--out", str(out), "--quiet"]) == 0
    assert "computed for" in capsys.readouterr().out
    for row, before in zip(predictions(out), rows, strict=True):
        for name in ("probability_red", "foreground", "computed"):
            assert float(row[name]) == pytest.approx(float(before[name]), abs=1e-5)
