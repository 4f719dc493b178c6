"""Settings: `--config` files, and `--resume` with other flags or a damaged folder."""

import json
import re
import shutil
from pathlib import Path

import cli_runs
import pytest
import yaml

import train


def test_flags_override_config(tmp_path):
    (tmp_path / "mine.yaml").write_text("epochs: 7\nlr: 0.002\n")
    settings = train.settings_of(["--config", str(tmp_path / "mine.yaml"), *cli_runs.MIL])
    assert (settings.epochs, settings.lr) == (1, 0.002)


@pytest.mark.slow
def test_overridden_config_is_saved(device_run):
    saved = yaml.safe_load((device_run.folder / "config.yaml").read_text())
    assert (saved["epochs"], saved["lr"]) == (1, 0.002)


@pytest.fixture
def out(mil_run, tmp_path):
    """A copy of the run folder of `--task mil`."""
    return Path(shutil.copytree(mil_run.folder, tmp_path / "out"))


def resume(out, *flags):
    return train.main(["--out", str(out), "--resume", *flags])


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--seed", "3"), "--resume continues the run in .* but these differ: seed 0 -> 3. Leave"),
        (("--monitor", "accuracy", "--keep", "last"), "monitor loss -> accuracy"),
        (("--model", "dtfd"), "model abmil -> dtfd"),
        (("--precision", "float64"), "precision float32 -> float64"),
        (("--optimizer", "adamw"), "optimizer adam -> adamw"),
        (("--mode", "frozen"), "mode accumulate -> frozen"),
        (("--task", "images"), "is a run of --task mil, not images"),
    ],
)
def test_resume_refuses_another_run(flags, message, out, capsys):
    before = files_of(out)
    assert resume(out, *flags) == 2
    assert re.search(message, capsys.readouterr().err)
    assert files_of(out) == before


@pytest.mark.slow
def test_resume_with_changed_settings(out, capsys):
    assert resume(out, "--epochs", "2", "--lr", "0.01") == 0
    assert "continues with epochs 1 -> 2; lr 0.001 -> 0.01" in capsys.readouterr().out
    assert yaml.safe_load((out / "config.yaml").read_text())["lr"] == 0.01
    assert json.loads((out / "metrics.json").read_text())["epochs"] == 2


def test_resume_removes_metrics(out, monkeypatch):
    seen = []

    def fit(*arguments):
        seen.append((out / "metrics.json").exists())
        raise KeyboardInterrupt

    monkeypatch.setattr("tfbig.cli.tasks.mil.MIL.fit", fit)
    assert resume(out, "--epochs", "2") == 130
    assert seen == [False]


def test_resume_with_fewer_epochs_than_done(out, monkeypatch, capsys):
    """The settings do not say that the model has learned fewer epochs than it has."""
    assert yaml.safe_load((out / "config.yaml").read_text())["epochs"] == 1
    with (out / "history.csv").open("a") as file:
        file.writelines(["2\n", "3\n", "4\n"])

    def fit(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr("tfbig.cli.tasks.mil.MIL.fit", fit)
    for epochs, expected in (("3", 4), ("5", 5)):
        assert resume(out, "--epochs", epochs) == 130
        assert yaml.safe_load((out / "config.yaml").read_text())["epochs"] == expected
        assert f" -> {expected}\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("config.yaml", "", "config.yaml: is empty; expected the settings of the run"),
        ("versions.json", "", "versions.json: is damaged"),
        ("versions.json", "[]", "versions.json: is damaged; expected names and values"),
        ("versions.json", None, "versions.json: no such file; it tells"),
        ("rates.json", "{", "rates.json: is damaged"),
        ("rates.json", '{"a": {"b": 1}}', "rates.json: does not hold the rates of a machine"),
        ("kept.weights.h5", "", "kept.weights.h5: the weights of the epoch that --keep chose"),
        ("kept.weights.h5", None, "kept.weights.h5: the weights of the epoch that --keep chose"),
    ],
)
def test_damaged_file(name, content, message, out, capsys):
    file = out / name
    if content is None:
        file.unlink()
    else:
        file.write_text(content)
    try:
        code = resume(out)
    except SystemExit as stopped:
        code = stopped.code
    assert code in (1, 2)
    assert message in capsys.readouterr().err


def files_of(out):
    return {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}


@pytest.mark.parametrize("flags", [(), ("--epochs", "2")])
@pytest.mark.parametrize("is_empty", [True, False])
def test_without_checkpoints(is_empty, flags, out, capsys):
    """Training that would start again from the beginning, over the results of the run, is refused first."""
    shutil.rmtree(out / "checkpoints")
    if is_empty:
        (out / "checkpoints").mkdir()
    before = files_of(out)
    assert resume(out, *flags) == 1
    output = capsys.readouterr()
    assert f"{out}: has results of 1 epoch, but no file checkpoints/step-*" in output.err
    assert output.out == ""
    assert files_of(out) == before


@pytest.mark.parametrize("flags", [(), ("--resume",)])
def test_without_config(flags, out, capsys):
    (out / "config.yaml").unlink()
    before = files_of(out)
    assert cli_runs.run_mil(out, *flags) == 1
    output = capsys.readouterr()
    message = "contains checkpoints, model.keras, history.csv of a run, but no config.yaml. Put"
    assert f"{out}: {message}" in output.err
    assert output.out == ""
    assert files_of(out) == before


def test_class_names_like_flags(out):
    config = yaml.safe_load((out / "config.yaml").read_text())
    config["class_names"] = ["-a", "--epochs=7"]
    (out / "config.yaml").write_text(yaml.safe_dump(config))
    resumed = train.settings_of(["--out", str(out), "--resume"])
    assert resumed.class_names == ("-a", "--epochs=7")
    assert resumed.epochs == 1


def test_resume_without_a_run(mil_run, tmp_path, capsys):
    assert mil_run.code == 0
    assert "holds no run yet; starting it" in mil_run.out
    assert train.main(["--out", str(tmp_path / "none"), "--resume"]) == 2
    assert "holds no run to resume" in capsys.readouterr().err
