"""Links between documents lead somewhere, and the tests that documents name exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from samples import ROOT

DOCUMENTS = sorted({*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *ROOT.glob("*/README.md")})
LAST_COMMIT = "95b2548"
"""The last one with the scripts of experiments that have been removed since, see ADR 62."""
every_document = pytest.mark.parametrize(
    "path", DOCUMENTS, ids=[str(path.relative_to(ROOT)) for path in DOCUMENTS]
)


@every_document
def test_links(path: Path) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)\)", path.read_text(encoding="utf-8"))
    files = [target for target in targets if "://" not in target]
    missing = [target for target in files if not (path.parent / target).exists()]
    assert not missing


@every_document
def test_files_that_are_named(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    names = re.findall(r"`(?:tests/)?((?:[a-z_]+/)*test_\w+\.py)`", text)
    missing = [name for name in names if not (ROOT / "tests" / name).exists()]
    named = re.findall(r"`((?:benchmarks|docs|examples|recipes|tests|tfbig)/[\w./-]+\.\w+)`", text)
    missing += [name for name in named if not (ROOT / name).exists()]
    assert not missing


@every_document
def test_commands_run(path: Path) -> None:
    """A command names a script that is here, or the commit at which it was: `python benchmarks/a.py`, at 0123abc."""
    text = " ".join(path.read_text(encoding="utf-8").split())
    found = re.findall(
        r"`python ((?:benchmarks|docs|recipes)/\S+?\.py)[^`]*`(?:,? at (\w{7})\b)?", text
    )
    gone = {(script, commit) for script, commit in found if not (ROOT / script).exists()}
    assert {commit for _, commit in gone} <= {LAST_COMMIT}


def test_readme_has_at_most_150_lines() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150


def test_commands_of_the_readme_exist() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    names = re.findall(r"python (\S+\.py)", text)
    assert names
    assert all((ROOT / name).exists() for name in names)


@every_document
def test_extras_are_installed_from_the_checkout(path: Path) -> None:
    if path.name != "start.md":  # which says what error messages mean
        assert "install 'tfbig[" not in path.read_text(encoding="utf-8")


def test_first_steps_list_every_extra_for_users() -> None:
    setup = (ROOT / "setup.py").read_text(encoding="utf-8")
    extras = re.findall(r'^        "(\w+)": \[', setup, re.MULTILINE)
    listed = re.findall(r"'\.\[(\w+)\]'", (ROOT / "docs/start.md").read_text(encoding="utf-8"))
    assert {*extras} - {"dev", "torch"} == {*listed}
