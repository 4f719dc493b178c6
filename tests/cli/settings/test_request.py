"""The help of every command and task is that of the files in `tests/files/help`."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from samples import FILES

import train
from tfbig.cli.main import main

COMMANDS = (
    "doctor",
    "plan",
    "dataset",
    "tile",
    "features",
    "predict",
    "report",
    "evaluate",
    "compare",
)
TASKS = (
    "segmentation",
    "mil",
    "images",
    "patchgd-segmentation",
    "volume-segmentation",
    "scenes",
    "instances",
)
HELP = {
    "tfbig": (main, ["--help"]),
    **{name: (main, [name, "--help"]) for name in COMMANDS},
    **{f"train-{task}": (main, ["train", "--task", task, "--help"]) for task in TASKS},
    **{f"train_py-{task}": (train.main, ["--task", task, "--help"]) for task in TASKS},
}


@pytest.mark.parametrize("name", HELP)
def test_help(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    command, flags = HELP[name]
    try:
        code = command(flags)
    except SystemExit as ended:
        code = ended.code
    assert code == 0
    expected = (FILES / "help" / f"{name}.txt").read_text(encoding="utf-8")
    assert capsys.readouterr().out == expected


def test_every_file_is_checked() -> None:
    assert {path.stem for path in (FILES / "help").iterdir()} == set(HELP)


@pytest.mark.parametrize(
    ("command", "flags", "message"),
    [
        (
            main,
            ["predict", "run", "slide", "--out", "o", "--slide-mp", "3"],
            "tfbig predict: unrecognized arguments: --slide-mp 3. Did you mean --slide-mpp",
        ),
        (
            main,
            ["train", "--task", "mil", "--filtres", "8"],
            "tfbig train: unrecognized arguments: --filtres 8. Did you mean",
        ),
        (
            train.main,
            ["--xyzzy"],
            "train.py: unrecognized arguments: --xyzzy. `train.py --task segmentation --help`",
        ),
    ],
)
def test_unknown_flags(
    command: Callable[..., int],
    flags: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One line names the command and the flags that are most like those given."""
    assert command(flags) == 2
    error = capsys.readouterr().err
    assert error.startswith(message)
    assert error.count("\n") == 1
