"""The start of `tfbig` and `train.py`: what is imported before the arguments are known, and what TensorFlow prints."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from samples import ROOT

import tfbig_command
from tfbig.system import startup_logs

HEAVY = ("tensorflow", "keras", "numpy", "skimage", "matplotlib", "tfbig.streaming")


def started(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run Python in the checkout, without settings of TensorFlow's logs but those given."""
    inherited = {k: v for k, v in os.environ.items() if k not in startup_logs.QUIET}
    return subprocess.run(
        [sys.executable, *arguments],
        env=inherited | {"PYTHONPATH": str(ROOT)} | environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("-m", "tfbig_command", "--help"), 0),
        (("-m", "tfbig_command", "--version"), 0),
        (("-m", "tfbig_command", "tile", "--help"), 0),
        (("-m", "tfbig_command", "tile", "--siz", "5"), 2),
        (("-m", "tfbig_command", "train", "--task", "images", "--epochs", "0"), 2),
        (("-m", "tfbig_command", "evaluate", "no_such_run"), 2),
        (("train.py", "--help"), 0),
        (("train.py", "--task", "mil", "--model", "unknown"), 2),
    ],
)
def test_nothing_heavy_is_imported_before_the_arguments_are_known(
    arguments: tuple[str, ...], code: int
) -> None:
    ended = started("-X", "importtime", *arguments)
    assert ended.returncode == code
    modules = [line.rpartition("|")[2].strip() for line in ended.stderr.splitlines() if "|" in line]
    assert "tfbig.cli.settings.parser" in modules
    assert not [name for name in modules if name.startswith(HEAVY)]


def test_version() -> None:
    assert started("-m", "tfbig_command", "--version").stdout == "tfbig 0.1.0\n"


BAGS = "BAGS"
"""Stands for a folder of bags."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        ("-m", "tfbig_command", "doctor"),
        pytest.param(
            ("-m", "tfbig_command", "plan", "MobileNet", "64x64", "--inference"),
            marks=pytest.mark.slow,
        ),
        pytest.param(
            ("train.py", "--task", "mil", "--data", BAGS, "--dry-run"),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_tensorflow_prints_nothing(arguments: tuple[str, ...], tmp_path: Path) -> None:
    if BAGS in arguments:
        import drawn_folders  # imports TensorFlow

        arguments = (*arguments[:4], drawn_folders.bags(2, 2, 2), *arguments[5:])
    ended = started(*arguments, XDG_CACHE_HOME=str(tmp_path))
    assert ended.returncode == 0
    assert ended.stderr == ""


@pytest.mark.slow
def test_names_are_imported_when_the_first_is_used() -> None:
    code = (
        "import tfbig_command, sys\n"
        "try:\n    tfbig_command.main(['--version'])\n"
        "except SystemExit:\n    import tfbig\n"
        "print('keras' in sys.modules, hasattr(tfbig, 'unknown'), 'keras' in sys.modules)\n"
        "print(tfbig.stream.__name__, 'keras' in sys.modules, hasattr(tfbig, 'unknown'))\n"
    )
    assert started("-c", code).stdout.splitlines() == [
        "tfbig 0.1.0",
        "False False False",
        "stream True False",
    ]


def test_interrupt_while_modules_are_imported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object, **__: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("tfbig.cli.main.main", interrupted)
    assert tfbig_command.main(["doctor"]) == 130
    assert capsys.readouterr().err == "tfbig: stopped by SIGINT\n"
