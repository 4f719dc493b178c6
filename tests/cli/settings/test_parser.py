"""Command lines that are read into values by the name of their flag."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from tfbig.cli.paths import FlagError
from tfbig.cli.settings import parser
from tfbig.cli.settings.flag import REQUIRED, flag, flags_of


@dataclass(frozen=True, kw_only=True)
class Settings:
    model: str = flag(REQUIRED, positional=True, help="model")
    slides: tuple[str, ...] = flag((), positional=True, nargs="*", help="slides")
    out_folder: str = flag(REQUIRED, help="out")
    names: tuple[str, ...] | None = flag(nargs="+", help="names", was=("labels",))
    size: tuple[int, int] = flag((1, 2), nargs=2, type=int, help="size")
    fast: bool = flag(False, help="fast")


FLAGS = flags_of(Settings)


@pytest.mark.parametrize(
    ("words", "values"),
    [
        ("", {}),
        ("m", {"model": ["m"]}),
        ("m a b", {"model": ["m"], "slides": ["a", "b"]}),
        ("--fast m --out-folder o a", {"fast": True, "model": ["m"], "slides": ["a"]}),
        ("--out_folder=a=b", {"out_folder": ["a=b"]}),
        ("--names a -b --fast", {"names": ["a", "-b"], "fast": True}),
        ("--size 3 4 m", {"size": ["3", "4"], "model": ["m"]}),
        ("--size 3 --fast", {"size": ["3"], "fast": True}),
        ("--names", {"names": []}),
        ("--fast=3", {"fast": ["3"]}),
        ("--size 3 4 --size=5", {"size": ["5"]}),
    ],
)
def test_values(words: str, values: dict[str, Any]) -> None:
    read = parser.read(words.split(), FLAGS)
    read.pop("out_folder", None) if "out_folder" not in values else None
    assert read == values


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--outfolder o", "unrecognized arguments: --outfolder o. Did you mean --out-folder?"),
        ("--xyzzy", "unrecognized arguments: --xyzzy."),
        ("--model m", "unrecognized arguments: --model m."),
        ("--labels a", "--labels is now --names."),
    ],
)
def test_unknown(words: str, message: str) -> None:
    with pytest.raises(FlagError) as error:
        parser.read(words.split(), FLAGS)
    assert str(error.value) == message


def test_loose_words() -> None:
    named = {name: each for name, each in FLAGS.items() if not each.positional}
    with pytest.raises(FlagError, match="unrecognized arguments: a b"):
        parser.read(["a", "--fast", "b"], named)


def test_flags_that_decide_which_others_there_are() -> None:
    words = ["--task", "mil", "--task=images", "--out_folder", "o", "--config"]
    assert parser.given(words, "task") == "images"
    assert parser.given(words, "out_folder") == "o"
    assert parser.given(words, "config") is None
    assert parser.given(words, "data") is None


def test_help() -> None:
    assert parser.asks_for_help(["--fast", "-h"])
    assert not parser.asks_for_help(["--helpful"])
