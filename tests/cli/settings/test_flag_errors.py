"""Errors of wrong flags are one line that says what was expected."""

from __future__ import annotations

import argparse
import sys
from typing import Any

import pytest

import train
from tfbig.cli.main import main
from tfbig.cli.settings import flag_errors, value_types

TASKS = "segmentation, mil, images, patchgd-segmentation, volume-segmentation, scenes, instances"
HELP = " `tfbig train --help` lists all flags."


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("predict m s", "tfbig predict: --out is missing: folder for the results."),
        ("train --shares 70 30", "tfbig train: --shares: expected 3 values: TRAIN VAL TEST."),
        ("train --class-weights=3 --task mil", "--class-weights: expected no value; found '3'."),
        ("train --out", "tfbig train: --out: expected one value: FOLDER."),
        (
            "train --task image",
            f"tfbig train: invalid choice 'image' of --task; did you mean 'images'? Choose from {TASKS}.{HELP}",
        ),
        ("train --task Segmentation", "; did you mean 'segmentation'? Choose"),
        ("train --task xyz", f"invalid choice 'xyz' of --task. Choose from {TASKS}."),
        ("train --epochs a", "--epochs: expected a whole number, 1 or more; found 'a'."),
        ("train --epochs 0", "--epochs: '0' must be at least 1."),
        ("train --task mil --shares 80 20 0", "To choose the split of each item, give the table"),
        (
            "train --task mil --shares .7 .1 .2",
            "the share of a split, a whole number, 1 or more; found '.7'.",
        ),
        ("train --task images --sise 3", "`tfbig train --task images --help` lists all flags."),
        ("predct", "tfbig: invalid choice 'predct' of COMMAND; did you mean 'predict'? Choose"),
        ("", "tfbig: COMMAND is missing: what to do. `tfbig --help` lists all flags."),
        ("tile --config", "tfbig tile: --config: expected one value: FILE."),
        ("train --config none.yaml", "tfbig train: none.yaml: no such file; expected"),
    ],
)
def test_errors_of_commands(
    flags: str,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = flags.split()
    monkeypatch.setattr(sys, "argv", ["/bin/tfbig", *words])
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.startswith("tfbig")
    assert error.count("\n") == 1


def test_errors_of_train_py(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["some/train.py", "--config", "none.yaml"])
    with pytest.raises(SystemExit):
        train.main(sys.argv[1:])
    assert capsys.readouterr().err.startswith("train.py: none.yaml: no such file")


@pytest.mark.parametrize(
    ("started", "name"),
    [
        (["/bin/tfbig", "train", "--x"], "tfbig train"),
        (["tfbig_command.py", "plan"], "tfbig plan"),
        (["tfbig.exe", "--x"], "tfbig"),
        (["train.py", "train"], "train.py"),
    ],
)
def test_program(started: list[str], name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", started)
    assert flag_errors.program() == name


@pytest.mark.parametrize(
    ("options", "words", "expected"),
    [
        ({"nargs": "+"}, ["--x"], "--x: expected at least one value."),
        ({"nargs": "+", "metavar": "N"}, ["--x"], "--x: expected at least one value: N."),
        ({"nargs": 2, "metavar": "N"}, ["--x", "1"], "--x: expected 2 values: N N."),
        ({"nargs": 2}, ["--x", "1"], "--x: expected 2 values."),
        ({"type": int}, ["--x", "1.5"], "--x: expected a whole number; found '1.5'."),
        ({"type": complex}, ["--x", "a"], "--x: expected a value of type complex; found 'a'."),
        (
            {"type": value_types.plane},
            ["--x", "a"],
            "--x: expected the number of a plane, or `max`; found 'a'.",
        ),
        ({"type": int, "choices": [1, 2]}, ["--x", "3"], "invalid choice 3 of --x. Choose from 1"),
        ({"required": True}, [], "--x is missing."),
        (
            {"required": True, "help": "a number, e.g. 3; or none"},
            [],
            "--x is missing: a number, e.g. 3. `prog --help`",
        ),
    ],
)
def test_errors_of_a_parser(
    options: dict[str, Any],
    words: list[str],
    expected: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    parser = argparse.ArgumentParser("prog")
    parser.add_argument("--x", **options)
    flag_errors.shorten(parser, {"--x": options})
    with pytest.raises(SystemExit) as ended:
        parser.parse_args(words)
    assert ended.value.code == 2
    assert expected in capsys.readouterr().err


def test_other_messages_stay() -> None:
    assert flag_errors.in_words("something is wrong", {}) == "something is wrong."
