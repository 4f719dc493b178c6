"""The site of the documents: links, pages of commands and names, and plans of machines."""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from samples import ROOT

sys.path[:0] = [str(ROOT / "docs"), str(ROOT / "docs" / "site")]
import commands
import links
import plan_pages
import plan_table
import recipe_table
import reference
from plan_table import Row


@pytest.mark.parametrize(
    ("file", "place"),
    [
        ("README.md", "index.md"),
        ("docs/guides/mil.md", "guides/mil.md"),
        ("recipes/README.md", "repository/recipes/README.md"),
    ],
)
def test_places_of_files(file: str, place: str) -> None:
    assert links.place(file) == place
    assert links.origin(place) == file


@pytest.mark.parametrize(
    ("page", "text", "expected"),
    [
        ("index.md", "[m](docs/map.md#a)", "[m](map.md#a)"),
        ("guides/mil.md", "[r](../../recipes/README.md)", "[r](../repository/recipes/README.md)"),
        ("guides/mil.md", "![a](../attention.png)", "![a](../attention.png)"),
        ("guides/streaming.md", "[d](../adr)", "[d](../adr/README.md)"),
        (
            "repository/recipes/README.md",
            "[s](../docs/guides/slides.md)",
            "[s](../../guides/slides.md)",
        ),
        ("notebooks/README.md", "[10](10_volume.py)", "[10](10_volume.md)"),
        ("map.md", "[x](https://keras.io)", "[x](https://keras.io)"),
        ("map.md", "```\na[0](README.md)\n```\n", "```\na[0](README.md)\n```\n"),
    ],
)
def test_links(page: str, text: str, expected: str) -> None:
    assert links.on_site(text, page) == expected


def test_linked_files_outside_of_docs() -> None:
    outside = links.outside(["docs/guides/streaming.md"])
    assert {"README.md", "examples/whole_slide_classifier.py", "recipes/README.md"} <= outside
    assert not any(path.startswith("docs/") for path in outside)


def test_every_public_name_is_in_the_reference() -> None:
    for module in reference.MODULES:
        page = reference.page(module)
        for name in getattr(importlib.import_module(module), "__all__", ()):
            full = f"{module}.{name}"
            assert (
                f"::: {full}\n" in page
                or full in reference.MODULES
                or reference.file_of(full).exists()
            )
    assert "::: tfbig.models.resnet.resnet18\n" in reference.page("tfbig.models")


def test_every_flag_is_on_the_page_of_its_command() -> None:
    pages = commands.pages()
    classes = {name: c.settings for name, c in commands.COMMANDS.items() if c.settings}
    classes |= {f"train-{t}": each.settings_class() for t, each in commands.TASKS.items()}
    assert {f"commands/{name}.md" for name in (*classes, "index", "evaluate")} == set(pages)
    for name, settings in classes.items():
        fields = commands.flags_of(settings)
        rows = re.findall(r"^\| `([^`]+)` \|", pages[f"commands/{name}.md"], re.M)
        named = [f for f in fields if not fields[f].positional]
        assert len(rows) == len(fields)
        assert {f"--{f.replace('_', '-')}" for f in named} <= {row.split()[0] for row in rows}


def test_flags_are_written_as_they_are_typed() -> None:
    page = commands.pages()["commands/plan.md"]
    assert "| `MODEL` | run folder, .keras file" in page
    assert "| `--leave-out VALUE ...` |" in page
    assert "| `--inference` | plan a prediction" in page
    assert (
        "| `--store NAME` | dtype of stored images (default: the dtype of the model) (bfloat16, float16)"
        in page
    )
    assert "%(default)s" not in "".join(commands.pages().values())


def test_every_recipe_is_in_the_table() -> None:
    page = recipe_table.pages()["reference/recipes.md"]
    assert page.count("\n| [`") == len(list((ROOT / "recipes").glob("*.yaml")))
    assert recipe_table.about("# A.\n# B\n\nlr: 1\n# C\n") == "A. B"


def test_every_notebook_is_a_page(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A page has the output of its notebook if docs/run_notebooks.py wrote it after the last change."""
    pytest.importorskip("jupytext", reason="pip install '.[docs]'")
    notebooks = importlib.import_module("notebooks")
    monkeypatch.setattr(notebooks, "RESULTS", tmp_path)
    made = notebooks.pages()
    assert len(made) == 10
    assert made["notebooks/10_volume.md"].startswith("# A volume\n")
    assert all("!!! note" in page for page in made.values())
    result = tmp_path / "10_volume.md"
    result.write_text("# A volume\n\n[![Open](https://a.svg)](https://b)\n")
    (tmp_path / "10_volume_files").mkdir()
    (tmp_path / "10_volume_files/picture_1.png").touch()
    assert notebooks.pages()["notebooks/10_volume.md"].endswith("\n[Open](https://b)\n")
    assert [place for place, _ in notebooks.pictures()] == [
        "notebooks/10_volume_files/picture_1.png"
    ]
    os.utime(result, (0, 0))
    assert notebooks.pages() == made


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (Row("a", 1, "m", 16, fits=False), "no"),
        (Row("a", 1, "m", 16, True, seconds=4.25), "4.2 s"),
        (Row("a", 1, "m", 16, True, seconds=600.0, disk_gb=12.34), "10 min, 12.3 GB"),
        (Row("a", 1, "m", 16, True, seconds=7200.0), "2 h"),
        (None, ""),
    ],
)
def test_cells_of_plans(row: Row | None, expected: str) -> None:
    assert plan_pages.cell(row) == expected


def test_plans_that_fit_less_memory_are_not_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_table, "HOSTS", (16, 32, 64, 128))
    asked = []

    def plan(host: int) -> Row:
        asked.append(host)
        return Row("a", 1, "m", host, fits=host >= 32, host_gb=40.0 if host > 64 else 13.0)

    rows = list(plan_table.for_hosts(plan))
    assert asked == [128, 32, 16]  # 40 GB fit 64 too, and 13 GB do not fit 0.9 of 0.85 of 16
    assert [row.host for row in rows] == [128, 64, 32, 16]
    assert [row.fits for row in rows] == [True, True, True, False]


def test_the_table_of_plans_can_be_read() -> None:
    rows = plan_table.rows()
    assert len({row.key for row in rows}) == len(rows)
    for row in rows:
        card = plan_table.CARDS.get(row.machine)
        assert card is None or row.device_gb <= 0.8 * card.memory
        assert row.host_gb <= plan_table.SHARE * row.host


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("mkdocs") is None, reason="needs the extra `docs`")
def test_the_site_is_built_without_a_warning_and_loads_nothing(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "-q", "-d", str(tmp_path)]
    process = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    assert "tfbig.mil.CLAM" in (tmp_path / "reference/mil.html").read_text()
    for page in tmp_path.rglob("*.html"):
        loaded = re.findall(
            r"<(?:script|link|img)[^>]+(?:src|href)=\"(https?:[^\"]+)", page.read_text()
        )
        assert not loaded, page
