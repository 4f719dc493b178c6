"""The help of every command and task is that of the files in `tests/files/help`."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from samples import FILES

import train
from tfbig.cli.main import main
from tfbig.tasks import TASKS

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
HELP = {
    "tfbig": ["--help"],
    **{name: [name, "--help"] for name in COMMANDS},
    **{f"train-{task}": ["train", "--task", task, "--help"] for task in TASKS},
}


def printed(
    capsys: pytest.CaptureFixture[str], command: Callable[[list[str]], int], flags: list[str]
) -> str:
    """Return the help that a command prints."""
    with pytest.raises(SystemExit) as ended:
        command(flags)
    assert ended.value.code == 0
    return capsys.readouterr().out


@pytest.fixture(autouse=True)
def _width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")


@pytest.mark.parametrize("name", HELP)
def test_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    expected = (FILES / "help" / f"{name}.txt").read_text(encoding="utf-8")
    assert printed(capsys, main, HELP[name]) == expected


@pytest.mark.parametrize("task", TASKS)
def test_help_of_train_py(task: str, capsys: pytest.CaptureFixture[str]) -> None:
    """It is that of `tfbig train` but for the name of the program, and for line breaks."""
    expected = (FILES / "help" / f"train-{task}.txt").read_text(encoding="utf-8")
    text = printed(capsys, train.main, ["--task", task, "--help"])
    same = text.replace("python train.py", "tfbig train").replace("train.py", "tfbig train")
    assert "".join(same.split()) == "".join(expected.split())


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
