"""The help of a command, from the declarations of its flags."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from tfbig.cli.settings import help_text
from tfbig.cli.settings.flag import REQUIRED, flag, flags_of


@dataclass(frozen=True, kw_only=True)
class Settings:
    SECTION = "network"

    slide: str = flag(REQUIRED, positional=True, metavar="SLIDE", help="a slide")
    model: str = flag("abmil", choices=["abmil", "dtfd", "transformer", "other"], help="model")
    mode: str = flag("a", choices={"a": "one", "b": "two"})
    norm: str = flag("x", choices=["x", "y"], help="norm")
    bags: int = flag(4, type=int, help="bags", only_if={"model": ("dtfd",)})
    shares: tuple[int, int] = flag((7, 3), nargs=2, type=int, metavar="N", help="shares")
    names: tuple[str, ...] | None = flag(nargs="+", metavar="NAME", help="names (default: all)")
    rate: float | None = flag(type=float, help="rate")
    fast: bool = flag(False, help="fast")


FLAGS = flags_of(Settings)


@pytest.mark.parametrize(
    ("name", "spelling", "meaning"),
    [
        ("slide", "SLIDE", "a slide"),
        ("model", "--model NAME", "model (abmil, dtfd, transformer, other; default: abmil)"),
        ("mode", "--mode NAME", "a: one; b: two (default: a)"),
        ("norm", "--norm x|y", "norm (default: x)"),
        ("bags", "--bags N", "bags (default: 4)"),
        ("shares", "--shares N N", "shares (default: 7 3)"),
        ("names", "--names NAME ...", "names (default: all)"),
        ("rate", "--rate X", "rate"),
        ("fast", "--fast", "fast"),
    ],
)
def test_flags(name: str, spelling: str, meaning: str) -> None:
    assert help_text.spelling(FLAGS[name]) == spelling
    assert help_text.meaning(FLAGS[name]) == meaning


def test_flags_are_shown_with_what_they_belong_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    pages = {
        model: help_text.page(
            "prog SLIDE [FLAGS]",
            "About.",
            FLAGS,
            "End.",
            help_text.known(["--model", model], FLAGS),
        )
        for model in ("abmil", "dtfd")
    }
    more = "--help has more flags after other values of --model."
    assert "--bags N" in pages["dtfd"]
    assert more not in pages["dtfd"]
    assert "--bags N" not in pages["abmil"]
    assert more in pages["abmil"]
    first = "usage: prog SLIDE [FLAGS]\n\nAbout.\n\n  SLIDE                 a slide\n\nnetwork:\n"
    assert pages["dtfd"].startswith(first)
    assert pages["dtfd"].endswith("\n\nEnd.")
    assert max(map(len, pages["dtfd"].splitlines())) <= 58


def test_long_names_have_a_line_of_their_own() -> None:
    assert help_text.entry("--a-name-that-is-long N", "text") == [
        "  --a-name-that-is-long N",
        " " * 24 + "text",
    ]


def test_known_values() -> None:
    known = help_text.known(["--bags=5"], FLAGS)
    assert known["bags"] == "5"
    assert known["mode"] == "a"
    assert known["rate"] is None
