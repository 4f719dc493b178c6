"""Parsers that are built from settings classes."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import pytest

from tfbig.cli.settings import parser
from tfbig.cli.settings.flag import REQUIRED, flag


@dataclass(frozen=True, kw_only=True)
class Settings:
    model: str = flag(REQUIRED, positional=True, help="model")
    folder: str | None = flag(positional=True, nargs="?", help="folder")
    out_folder: str = flag(REQUIRED, help="out")
    names: tuple[str, ...] | None = flag(nargs="+", help="names")
    size: tuple[int, int] = flag((1, 2), nargs=2, type=int, help="size")
    fast: bool = flag(False, help="fast")
    rate: float = flag(0.5, type=float, help="rate (default: %(default)s)")


def parsed(*argv: str) -> Settings:
    whole = argparse.ArgumentParser("prog", allow_abbrev=False)
    parser.add_flags(whole, Settings)
    return parser.parse(whole, Settings, argv)


def test_defaults() -> None:
    assert parsed("m", "--out-folder", "o") == Settings(model="m", out_folder="o")


def test_values() -> None:
    flags = ("--names", "a", " -b", "--size", "3", "4", "--fast", "--rate=2")
    expected = Settings(
        model="m",
        folder="f",
        out_folder="o",
        names=("a", "-b"),
        size=(3, 4),
        fast=True,
        rate=2.0,
    )
    assert parsed("m", "f", "--out-folder", "o", *flags) == expected
    assert hash(expected) == hash(parsed("m", "f", "--out-folder", "o", *flags))


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ((), "model is missing: model. --out-folder is missing: out."),
        (("m",), "--out-folder is missing: out."),
        (
            ("m", "--out-folder", "o", "--rate", "x"),
            "--rate: expected a number; found 'x'.",
        ),
        (
            ("m", "--out-folder", "o", "--outfolder", "o"),
            "unrecognized arguments: --outfolder o. Did you mean --out-folder?",
        ),
    ],
)
def test_wrong_flags(
    argv: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error is one line, without the usage."""
    with pytest.raises(SystemExit) as ended:
        parsed(*argv)
    assert ended.value.code == 2
    assert capsys.readouterr().err == f"prog: {message} `prog --help` lists all flags.\n"


def test_underscores() -> None:
    assert parser.with_dashes("--batch_size=a_b") == "--batch-size=a_b"
    assert parser.with_dashes("a_b") == "a_b"
