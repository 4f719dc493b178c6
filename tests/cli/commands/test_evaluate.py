"""`tfbig evaluate`: runs evaluated again, and on other data."""

import shutil

import numpy as np
import pytest
import yaml
from cli_runs import metrics, predictions, rows_of, write_cohort_slide, write_table
from samples import tissue, write_slide

import train
from tfbig.cli.main import main
from tfbig.cli.paths import FlagError
from tfbig.cli.settings import evaluation

NEW_SLIDES = [{"slide_id": f"new{n}", "label": "red"} for n in range(3)]


@pytest.fixture(scope="module")
def other_table(tmp_path_factory):
    """A table of three slides of one class, which no run was trained on."""
    folder = tmp_path_factory.mktemp("other")
    for row in NEW_SLIDES:
        write_cohort_slide(folder / f"{row['slide_id']}.tif", (200, 60, 80))
    return write_table(folder / "slides.csv", NEW_SLIDES)


@pytest.mark.slow
def test_segmentation(segmentation_run, tmp_path, capsys):
    """A run is evaluated on the slide that it was not trained on."""
    run = segmentation_run.folder
    assert main(["evaluate", str(run), "--out", str(tmp_path / "again")]) == 0
    assert [row["slide"] for row in predictions(tmp_path / "again")] == ["c.tif"]
    assert f"evaluating {run} on c.tif" in capsys.readouterr().out
    dice = metrics(tmp_path / "again")["test_dice"]
    one_pixel = (
        2 / (tissue(ord("c")).min(axis=2) < 200).sum()
    )  # its probability may round across a half
    assert dice == pytest.approx(metrics(run)["val_dice"], abs=one_pixel)
    assert (tmp_path / "again" / "report.html").exists()


@pytest.mark.slow
def test_segmentation_of_other_slides(segmentation_run, tmp_path):
    run = segmentation_run.folder
    for number in range(2):
        write_slide(tmp_path / "others" / f"other {number}.tif", 10 + number)
    out = tmp_path / "out"
    assert main(["evaluate", str(run), "--data", str(tmp_path / "others"), "--out", str(out)]) == 0
    rows = predictions(out)
    assert [row["slide"] for row in rows] == ["other 0.tif", "other 1.tif"]
    assert metrics(out)["test_iou"] == pytest.approx(np.mean([float(row["iou"]) for row in rows]))
    assert {"other 0.png", "other 1.png", "versions.json"} <= {p.name for p in out.iterdir()}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "background", "tissue"),
    [
        ([], "skip", "grey"),
        (["--background", "compute"], "compute", "grey"),
        (["--leave-out", "7"], "skip", None),
    ],
)
def test_background_of_the_run(flags, background, tissue, skipping_run, tmp_path, capsys):
    """Slides are masked as in training, unless a flag says otherwise."""
    run, out = skipping_run.folder, tmp_path / "out"
    code = main(["evaluate", str(run), "--out", str(out), *flags])
    if "--leave-out" in flags:
        assert code == 1
        assert "has no cell of 1 x 1 pixels with the colour [7, 7, 7]" in capsys.readouterr().err
        return
    assert code == 0
    config = yaml.safe_load((out / "config.yaml").read_text())
    assert (config["background"], config["tissue"]) == (background, tissue)
    ((row,), (before,)) = predictions(out), predictions(run)
    assert ("foreground" in row) == (background == "skip")
    assert background == "compute" or row == before


@pytest.mark.slow
def test_bags(mil_run, tmp_path):
    run = mil_run.folder
    assert main(["evaluate", str(run), "--out", str(tmp_path)]) == 0
    config = yaml.safe_load((run / "config.yaml").read_text())
    assert config["class_names"] == ["negative", "positive"]
    before, after = (
        {key: value for key, value in metrics(folder).items() if key.startswith("test_")}
        for folder in (run, tmp_path)
    )
    assert before == after
    assert predictions(run) == predictions(tmp_path)


def test_a_recipe_wins_over_the_run_and_flags_over_the_recipe(tmp_path):
    lines = ["task: mil", "bags: slides", "model: gated", "eval_sample: 7", "eval_repeats: 1"]
    (tmp_path / "config.yaml").write_text("\n".join(lines))
    recipe = ["--config", "recipes/test-camelyon16.yaml"]
    settings = evaluation.parse([str(tmp_path), *recipe, "--eval-sample", "5"], "")
    assert (settings.eval_split, settings.eval_repeats) == ("all", 10)
    assert (settings.eval_sample, settings.model) == (5, "gated")


def test_errors(tmp_path, capsys):
    assert main(["evaluate", str(tmp_path)]) == 1
    assert "is not a run folder of train" in capsys.readouterr().err
    assert main(["evaluate"]) == 2
    assert "RUN is missing: the run folder comes first" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("task", "flags", "refused"),
    [
        ("mil", ["--lr", "0.1"], "--lr: is only for training. Leave it out."),
        ("mil", ["--model", "gated"], "--model: is only for training."),
        ("mil", ["--splits", "s.csv"], "--splits: is only for training. Choose test slides"),
        ("images", ["--augment", "slide"], "--augment: is only for training."),
        ("instances", ["--crops", "9"], "--crops: is only for training."),
        ("images", ["--shares", "1", "1", "1"], "--shares: is only for training."),
        ("mil", ["--epochs", "3", "--model", "abmil", "--instances-at-once", "9"], ""),
        ("instances", ["--threshold", "0.4", "--mode", "device"], ""),
    ],
)
def test_flags_of_training_are_refused(task, flags, refused, tmp_path):
    """Unless they repeat what the run was trained with."""
    (tmp_path / "config.yaml").write_text(f"task: {task}\nepochs: 3\n")
    if not refused:
        evaluation.parse([str(tmp_path), *flags], "")
        return
    with pytest.raises(FlagError, match=refused):
        evaluation.parse([str(tmp_path), *flags], "")


@pytest.mark.parametrize(("task", "flag"), [("mil", "--eval-sample"), ("volume-segmentation", "")])
def test_help_has_the_flags_of_the_run(task, flag, tmp_path, capsys):
    (tmp_path / "config.yaml").write_text(f"task: {task}\nepochs: 3\n")
    for words in ([str(tmp_path)], [str(tmp_path), "--data", "a"]):
        with pytest.raises(SystemExit) as ended:
            main(["evaluate", *words, "--help"])
        assert ended.value.code == 0
        text = capsys.readouterr().out
        assert text.startswith("usage: tfbig evaluate RUN [FLAGS]\n")
        assert all(each in text for each in ("  RUN ", "--data", "--quiet", flag))
        assert "  --epochs" not in text


@pytest.mark.parametrize("command", [pytest.param("evaluate", marks=pytest.mark.slow), "predict"])
def test_killed_run(command, mil_run, tmp_path, capsys):
    run = shutil.copytree(mil_run.folder, tmp_path / "run")
    (run / "metrics.json").unlink()
    (run / "model.keras").unlink()
    (tmp_path / "slides").mkdir()
    others = [] if command == "evaluate" else [str(tmp_path / "slides")]
    assert main([command, str(run), *others, "--out", str(tmp_path / "out")]) == 1
    output = capsys.readouterr()
    advice = f"Continue it with tfbig train --resume --out {run}."
    assert f"{run}: the run has not finished: it has no model.keras yet. {advice}" in output.err
    assert output.out == ""
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_from_another_directory(cohort_table, tiles, other_table, tmp_path, monkeypatch):
    """Relative paths of a run hold in another directory; its tiles are not used for other slides."""
    monkeypatch.chdir(cohort_table.parent.parent)
    coords = tiles.relative_to(cohort_table.parent.parent)
    flags = ["--task", "mil", "--bags", "slides", "--data", "data", "--coords", str(coords)]
    run = tmp_path / "run"
    assert train.main([*flags, "--epochs", "1", "--out", str(run)]) == 3
    rows = rows_of(run / "slides.csv")
    assert [row["split"] for row in rows].count("train") == 7
    monkeypatch.chdir("/")
    assert main(["evaluate", str(run), "--out", str(tmp_path / "again")]) == 0
    assert predictions(tmp_path / "again") == predictions(run)
    out = tmp_path / "other"
    assert main(["evaluate", str(run), "--data", str(other_table), "--out", str(out)]) == 0
    assert [row["bag"] for row in predictions(out)] == ["new0", "new1", "new2"]
    correct = [row["predicted"] == row["label"] for row in predictions(out)]
    assert metrics(out)["test_accuracy"] == pytest.approx(np.mean(correct))


@pytest.mark.slow
def test_table_of_one_class(slide_bags_run, other_table, tmp_path, capsys):
    run = slide_bags_run.folder
    assert main(["evaluate", str(run), "--data", str(other_table), "--out", str(tmp_path)]) == 0
    output = capsys.readouterr().out
    assert "test: 3 bags of 36 to 36 instances (0 purple, 3 red)" in output
    assert "train" not in output
    assert np.shape(metrics(tmp_path)["confusion"]) == (2, 2)
    assert [row["label"] for row in predictions(tmp_path)] == ["red", "red", "red"]


@pytest.mark.slow
def test_training_slides_are_not_evaluated(slide_bags_run, tmp_path, capsys):
    """In its own table, and in a copy with other splits, a run is evaluated on its test slides."""
    run, table = slide_bags_run.folder, slide_bags_run.data
    copy = tmp_path / "copy.csv"
    copy.write_text(table.read_text())
    same = ["evaluate", str(run), "--out", str(tmp_path / "own")]
    other = ["evaluate", str(run), "--data", str(copy), "--slides", str(table.parent)]
    for command, out in ((same, "own"), ([*other, "--out", str(tmp_path / "copy")], "copy")):
        assert main(command) in (0, 3)
        assert predictions(tmp_path / out) == predictions(run)
    assert main(["evaluate", str(run), "--folds", "4"]) == 2
    assert "--folds: is only for training" in capsys.readouterr().err
