"""Errors of wrong flags are one line that says what was expected."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

import train
from tfbig import tasks
from tfbig.cli.main import main
from tfbig.cli.paths import FlagError
from tfbig.cli.settings import merge, parser, value_types
from tfbig.cli.settings.flag import REQUIRED, flag, flags_of
from tfbig.cli.settings.flag_errors import listed_by
from tfbig.cli.settings.merge import Layer

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
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = flags.split()
    assert main(words) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.startswith("tfbig")
    assert error.count("\n") == 1


def test_errors_of_train_py(capsys: pytest.CaptureFixture[str]) -> None:
    assert train.main(["--config", "none.yaml"]) == 2
    assert capsys.readouterr().err.startswith("train.py: none.yaml: no such file")


@pytest.mark.parametrize(
    ("declared", "words", "expected"),
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
        ({"default": REQUIRED}, [], "--x is missing."),
        (
            {"default": REQUIRED, "help": "a number, e.g. 3; or none"},
            [],
            "--x is missing: a number, e.g. 3. `prog --help`",
        ),
    ],
)
def test_errors_of_a_flag(declared: dict[str, Any], words: list[str], expected: str) -> None:
    @dataclass(frozen=True, kw_only=True)
    class Settings:
        x: Any = flag(**declared)  # noqa: RUF009

    given = Layer(parser.read(words, flags_of(Settings)))
    with pytest.raises(FlagError) as error:
        merge.merged(Settings, [given], "prog")
    assert expected in str(error.value)


def test_types_that_read_numbers_say_what_they_expect() -> None:
    for settings in (each.settings_class() for each in tasks.TASKS.values()):
        for each in flags_of(settings).values():
            if each.type is not None:
                with pytest.raises(ValueError) as error:
                    each.type("no value")
                is_told = isinstance(error.value, value_types.WrongValue)
                assert is_told or each.type in value_types.EXPECTED, each.name


def test_the_help_is_named() -> None:
    with (
        pytest.raises(FlagError, match=r"^wrong\. `prog --help` lists all flags\.$"),
        listed_by("prog"),
    ):
        raise FlagError("wrong.")
