"""The notebooks parse, what they use exists, and (slow) each runs without a word that a reader would stumble over."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from samples import FILES, ROOT

FOLDER = ROOT / "docs" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.py"))
every_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=[p.stem for p in NOTEBOOKS])


@pytest.fixture(name="runner")
def fixture_runner(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module docs/run_notebooks.py, if what it needs is installed."""
    for name in ("jupytext", "nbclient", "nbconvert", "ipykernel"):
        pytest.importorskip(name, reason="pip install '.[docs]'")
    monkeypatch.syspath_prepend(ROOT / "docs")
    return importlib.import_module("run_notebooks")


def text_cells(path: Path) -> str:
    """Return what a notebook says outside of its code."""
    cells = re.split(r"^# %%", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return "\n".join(cell for cell in cells if cell.startswith(" [markdown]"))


def names_of_tfbig(tree: ast.Module) -> Iterator[str]:
    """Yield dotted names of tfbig that code imports or uses: `tfbig.sources.open`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tfbig"):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (a.name for a in node.names if a.name.startswith("tfbig"))
        elif isinstance(node, ast.Attribute):
            name = ast.unparse(node)
            if re.fullmatch(r"tfbig(\.\w+)+", name):
                yield name


def resolve(name: str) -> Any:
    """Return what a dotted name refers to."""
    first, *rest = name.split(".")
    found = importlib.import_module(first)
    for number, part in enumerate(rest):
        if not hasattr(found, part):
            importlib.import_module(".".join([first, *rest[: number + 1]]))
        found = getattr(found, part)
    return found


def test_notebooks_are_numbered() -> None:
    assert [path.stem[:3] for path in NOTEBOOKS] == [f"{n:02}_" for n in range(1, 11)]


@every_notebook
def test_names_exist(path: Path) -> None:
    names = {*names_of_tfbig(ast.parse(path.read_text(encoding="utf-8")))}
    assert "tfbig" in names
    for name in names:
        resolve(name)


def test_a_name_that_does_not_exist_is_found() -> None:
    names = [*names_of_tfbig(ast.parse("tfbig.sources.opne('a.tif').read(0, 1)"))]
    assert names == ["tfbig.sources.opne", "tfbig.sources"]
    with pytest.raises(ImportError, match="opne"):
        resolve(names[0])


@every_notebook
def test_flags_exist(path: Path) -> None:
    """Flags that commands and text name exist."""
    helps = "".join(file.read_text(encoding="utf-8") for file in (FILES / "help").glob("*.txt"))
    used = re.findall(r"(?<![\w-])--[a-z][\w-]*", path.read_text(encoding="utf-8"))
    others = {"--ntasks-per-node"}  # of srun
    assert {*used} - others <= {*re.findall(r"--[a-z][\w-]*", helps)}


@every_notebook
def test_flags_of_commands(path: Path) -> None:
    """Each command has its flags; those of `train` are in the help of its tasks."""
    lines = re.findall(r"^# !tfbig (\w+)(.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    for command, words in lines:
        files = sorted((FILES / "help").glob(f"{command}*.txt"))
        helps = "".join(file.read_text(encoding="utf-8") for file in files)
        assert {*re.findall(r"--[a-z][\w-]*", words)} <= {*re.findall(r"--[a-z][\w-]*", helps)}


@every_notebook
def test_links(path: Path) -> None:
    """To other notebooks by the names of their pages, to guides relative to the folder of the notebooks."""
    targets = re.findall(r"\]\(([^)#\s]+)", text_cells(path))
    files = [FOLDER / target for target in targets if "://" not in target]
    pages = [f.with_suffix(".py") if f.parent == FOLDER else f for f in files]
    assert files
    assert [page for page in pages if not page.exists()] == []


@every_notebook
def test_beginning_and_end(path: Path) -> None:
    """A title, claims that are checked, and what to read next."""
    source = path.read_text(encoding="utf-8")
    assert source.startswith("# %% [markdown]\n# # ")
    assert "assert " in source
    assert "## What next\n" in text_cells(path)


def test_what_a_reader_stumbles_over(runner: ModuleType) -> None:
    from nbformat import v4

    printed = {
        "fine": ("stdout", "loss 0.5\n"),
        "error": ("stderr", "anything\n"),
        "warning": ("stdout", "a.py:3: UserWarning: odd\n"),
        "log": ("stdout", "E0000 00:00:1795635718.37   12695 cuda_platform.cc:52] failed\n"),
    }
    for name, (stream, text) in printed.items():
        output = v4.new_output("stream", name=stream, text=text)
        notebook = v4.new_notebook(cells=[v4.new_code_cell("run()", outputs=[output])])
        assert len(list(runner.problems(notebook))) == (name != "fine")


@pytest.mark.parametrize(
    ("address", "name"),
    [
        ("https://github.com/someone/tfbig.git", "someone/tfbig"),
        ("https://github.com/some-one/tf.big", "some-one/tf.big"),
        ("git@github.com:someone/tfbig.git", "someone/tfbig"),
        ("https://example.org/someone/tfbig.git", None),
        (None, None),
    ],
)
def test_the_repository_is_that_of_git(
    address: str | None,
    name: str | None,
    runner: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("GITHUB_REPOSITORY", raising=False)
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    if address:
        subprocess.run(["git", "-C", str(tmp_path), "remote", "add", "origin", address], check=True)
    assert runner.repository(tmp_path) == name


@pytest.mark.parametrize("name", ["someone/tfbig", None])
def test_a_button_opens_the_notebook_on_colab(
    name: str | None, runner: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "repository", lambda: name)
    path = tmp_path / "03_title.py"
    path.write_text(
        "# %% [markdown]\n# # Title\n# [guide](../guides/mil.md)\n\n# %%\n1 + 1\n", encoding="utf-8"
    )
    notebook = runner.read(path)
    runner.write(notebook, path.stem, tmp_path)
    opened = (tmp_path / "03_title.ipynb").read_text(encoding="utf-8")
    colab = "https://colab.research.google.com/github/someone/tfbig/blob/gh-pages/notebooks/03_title.ipynb"
    assert (f"({colab})" in opened) == bool(name)
    assert ("git clone -q --depth 1 https://github.com/someone/tfbig tfbig" in opened) == bool(name)
    assert ("(https://github.com/someone/tfbig/blob/main/docs/guides/mil.md)" in opened) == bool(
        name
    )
    assert "git clone" not in (tmp_path / "03_title.md").read_text(encoding="utf-8")


def test_progress_is_not_part_of_a_page(runner: ModuleType) -> None:
    from nbformat import v4

    text = "\x1b[1mtile 1/2\r\x1b[0mtile 2/2\rdone\r\n"
    cell = v4.new_code_cell("run()", outputs=[v4.new_output("stream", name="stdout", text=text)])
    runner._as_shown(cell)
    assert cell.outputs[0].text == "done\n"


@pytest.mark.slow
@pytest.mark.parametrize("code", ["!exit 3", "1 / 0", "import warnings; warnings.warn('odd')"])
def test_a_failing_notebook_fails(code: str, runner: ModuleType, tmp_path: Path) -> None:
    comment = "# " if code.startswith("!") else ""
    path = tmp_path / "00_failing.py"
    path.write_text(f"# %% [markdown]\n# # Title\n\n# %%\n{comment}{code}\n", encoding="utf-8")
    assert runner.run(path, tmp_path)


@pytest.mark.slow
@every_notebook
def test_notebook(
    path: Path, runner: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME")  # without a cache, Matplotlib prints where it has none
    monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL")  # shows logs that commands hold back
    assert runner.run(path, tmp_path) == []
    assert (tmp_path / f"{path.stem}.ipynb").exists()
    assert "![png](" in (tmp_path / f"{path.stem}.md").read_text(encoding="utf-8")
