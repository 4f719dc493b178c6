"""The help of every command and task is that of the files in `tests/files/help`."""

from __future__ import annotations

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
TASKS = ("segmentation", "mil", "patchgd", "patchgd-segmentation", "instances")
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
