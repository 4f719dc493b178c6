"""Code of documents runs, commands in them parse, and what is written from elsewhere is up to date."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from page_blocks import blocks_of, commands_of, has_commands, matches, parse, run_page
from samples import ROOT

import tfbig

sys.path[:0] = [str(ROOT / "docs"), str(ROOT / "docs" / "site")]
import commands
import write_pages

PAGES = sorted(
    {
        *(path for path in ROOT.glob("*.md") if path.name != "CHANGELOG.md"),
        *(ROOT / "docs").rglob("*.md"),
        ROOT / "recipes/README.md",
    }
)


def with_code(page: Path) -> bool:
    """Return whether a page has blocks that run."""
    kinds = {block.kind for block in blocks_of(page.read_text(encoding="utf-8"))}
    return bool(kinds & {"python", "run", "prints", "raises"})


@pytest.mark.slow
@pytest.mark.plain
@pytest.mark.filterwarnings("ignore:`shuffle=True` was passed")
@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if with_code(page)],
    ids=lambda path: path.relative_to(ROOT).as_posix(),
)
def test_code_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = {"keras": keras, "np": np, "tf": tf, "tfbig": tfbig, "monkeypatch": monkeypatch}
    run_page(page, {**names, "__name__": "page"})


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_commands_parse(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recipes").symlink_to(ROOT / "recipes")
    (tmp_path / "outlines").mkdir()
    for block in blocks_of(page.read_text(encoding="utf-8")):
        if not has_commands(block):
            continue
        where = f"{page.name}:{block.line}"
        for command in commands_of(block.text) if block.kind == "" else ():
            try:
                parse(command, tmp_path, monkeypatch)
            except (SystemExit, tfbig.TfbigError) as error:
                raise AssertionError(f"{where}: {command}: {error}") from error


def known_flags() -> set[str]:
    """Return every flag of every command."""
    classes = [c.settings for c in commands.COMMANDS.values() if c.settings is not None]
    names = {
        name
        for settings in [*classes, *(each.settings_class() for each in commands.TASKS.values())]
        for name in commands.flags_of(settings)
    }
    return {f"--{name.replace('_', '-')}" for name in names} | {"--help", "--version", "--config"}


OTHERS = {
    "--strict",
    "--update-plans",
    "--report",
    "--list",
    "--warmup",
    "--steps",
    "--of",
    "--network",
}
"""Flags of mkdocs, pytest and benchmarks in the text."""


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_flags_in_the_text_exist(page: Path) -> None:
    text = re.sub(
        r"^ *```.*?^ *```$|<!--.*?-->", "", page.read_text(encoding="utf-8"), flags=re.S | re.M
    )
    spans = [
        span
        for span in re.findall(r"`([^`]+)`", text)
        if not re.search(r"python \S+\.py|\.py ", span)
    ]
    flags = {flag for span in spans for flag in re.findall(r"(?<![\w-])--[a-z][a-z-]*\b", span)}
    assert flags - known_flags() - OTHERS == set()


@pytest.fixture(scope="module")
def figures() -> tuple[Any, Any]:
    """Names of figures, and results."""
    return write_pages.names(), write_pages.results()


@pytest.mark.parametrize(
    "page", write_pages.DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix()
)
def test_figures_and_blocks_are_up_to_date(page: Path, figures: tuple[Any, Any]) -> None:
    """Run `python docs/write_pages.py` after new results, or a change of a figure."""
    text = page.read_text(encoding="utf-8")
    assert write_pages.written(text, *figures) == text


def test_pages_of_plans_are_up_to_date() -> None:
    """Run `python docs/write_pages.py` after `python docs/plan_table.py`."""
    pages = write_pages.machines()
    assert {path: path.read_text(encoding="utf-8") for path in pages} == pages


def test_every_figure_is_used() -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in write_pages.DOCUMENTS)
    assert [name for name in write_pages.names() if f"<!--{name}-->" not in text] == []


def test_figures_are_replaced() -> None:
    lines = [{"case": "a", "seconds": 2.0}]
    known = {"a seconds": "case=a|seconds|.1f"}
    assert write_pages.written("x 1.5<!--a seconds--> s", known, lines) == "x 2.0<!--a seconds--> s"
    with pytest.raises(ValueError, match="has no figure 'b'"):
        write_pages.written("1<!--b-->", known, lines)
    with pytest.raises(ValueError, match="no block 'b'; expected one of plan, "):
        write_pages.written("<!-- generated: b -->\n<!-- end -->", known, lines)


def test_blocks_are_found() -> None:
    text = "<!-- before\na = 1\n-->\n\n<!-- run -->\n```bash\ntfbig doctor  # x\n```\n\n```python\na\n```\n"
    assert [(b.line, b.kind, b.language) for b in blocks_of(text)] == [
        (1, "before", ""),
        (6, "run", "bash"),
        (10, "python", "python"),
    ]
    assert commands_of("tfbig a \\\n    b  # c\n# d\n") == ["tfbig a b"]


def test_dots_stand_for_anything() -> None:
    assert matches("a ... d.", "a b\nc d.")
    assert not matches("a ... d.", "a b c")
