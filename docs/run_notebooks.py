"""Run the notebooks in docs/notebooks, and write each as .ipynb and as a page with pictures for the site.

    pip install '.[docs]'
    python docs/run_notebooks.py [NUMBER ...] [--out build/notebooks] [--jobs 2]

A notebook is a .py file in the percent format of jupytext; nothing else of it is stored in the repository. Each runs in
a process and a folder of its own. An exception, a command that fails, a warning, or anything on standard error fails
the run. The time of each is printed.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import repeat
from pathlib import Path

import jupytext
import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from nbconvert import MarkdownExporter
from nbconvert.writers import FilesWriter

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "notebooks"
OUT = ROOT / "build" / "notebooks"

GITHUB = "https://github.com/"
COLAB = "https://colab.research.google.com/github/"
BADGE = "https://colab.research.google.com/assets/colab-badge.svg"

INSTALL = """\
# On Colab, this cell fetches and installs tfbig. Elsewhere it does nothing.
import sys

if "google.colab" in sys.modules:
    !git clone -q --depth 1 {address} tfbig
    %cd tfbig
    %pip install -q ."""

STRICT = """\
_system = get_ipython().system


def _checked(*_words):
    _system(*_words)
    if get_ipython().user_ns["_exit_code"]:
        raise SystemError(f"{_words} ended with exit code {get_ipython().user_ns['_exit_code']}")


get_ipython().system = _checked
"""
"""Start of each kernel: a failing `!command` is an error, which IPython does not make it.

IPython looks for `{name}` in a command among the local variables of the caller too, so these have no common names.
"""

SECONDS = 600
"""Most seconds that a cell may take."""

SUSPECT = re.compile(
    r"Warning:|\bWARNING\b|Traceback \(most recent|^[IWEF]\d{4} [\d:.]+ ", re.MULTILINE
)
"""What a reader would stumble over on standard output."""

ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def sources() -> list[Path]:
    """Return the notebooks in order."""
    return sorted(FOLDER.glob("[0-9][0-9]_*.py"))


def repository(folder: Path = ROOT) -> str | None:
    """Return `owner/name` of the repository on GitHub, or None if a folder has none.

    A workflow of GitHub says it in `GITHUB_REPOSITORY`; elsewhere it is that of the remote `origin` of git.

    Args:
        folder: Folder of a working tree of git.
    """
    if "GITHUB_REPOSITORY" in os.environ:
        return os.environ["GITHUB_REPOSITORY"]
    if shutil.which("git") is None:
        return None
    words = ["git", "-C", str(folder), "config", "--get", "remote.origin.url"]
    address = subprocess.run(words, capture_output=True, text=True, check=False).stdout.strip()
    found = re.fullmatch(r".*github\.com[:/]([\w.-]+/[\w.-]+?)(\.git)?/?", address)
    return found[1] if found else None


def read(path: Path) -> nbformat.NotebookNode:
    """Read a notebook, and add the button that opens it on Colab and the cell that installs tfbig there.

    The button leads to the branch of the site. A copy that is not on GitHub gets none.
    """
    notebook = jupytext.read(path)
    if name := repository():
        link = f"{COLAB}{name}/blob/gh-pages/notebooks/{path.stem}.ipynb"
        install = INSTALL.format(address=GITHUB + name)
        notebook.cells[1:1] = [
            nbformat.v4.new_markdown_cell(f"[![Open in Colab]({BADGE})]({link})"),
            nbformat.v4.new_code_cell(install, metadata={"tags": ["colab"]}),
        ]
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number}"  # the same in every run
    notebook.metadata["kernelspec"] = {
        "name": "python3",
        "display_name": "Python 3",
        "language": "python",
    }
    return notebook


def execute(notebook: nbformat.NotebookNode, scratch: Path) -> None:
    """Run a notebook in a folder that can be deleted, and raise CellExecutionError where a cell fails."""
    start = scratch / "ipython" / "profile_default" / "startup" / "strict.py"
    start.parent.mkdir(parents=True)
    start.write_text(STRICT, encoding="utf-8")
    programs = Path(sys.executable).parent
    environment = os.environ | {
        "IPYTHONDIR": str(scratch / "ipython"),
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
        "TMPDIR": str(scratch),
        "COLUMNS": "100",
    }
    client = NotebookClient(
        notebook,
        timeout=SECONDS,
        kernel_name="python3",
        startup_timeout=SECONDS,
        coalesce_streams=True,
        extra_arguments=["--log-level=40"],  # errors only
        resources={"metadata": {"path": str(FOLDER)}},
    )
    try:
        client.execute(env=environment)
    finally:
        for cell in notebook.cells:
            cell.metadata.pop("execution", None)  # times, which differ in every run
            _as_shown(cell)


def _as_shown(cell: nbformat.NotebookNode) -> None:
    """Replace what a cell printed by what is left on the screen of it."""
    for output in cell.get("outputs", []):
        if output.output_type == "stream":
            text = ANSI.sub("", output.text).replace("\r\n", "\n")
            output.text = re.sub(r"[^\n]*\r", "", text)
    if "outputs" in cell:
        cell.outputs = [o for o in cell.outputs if o.output_type != "stream" or o.text.strip()]


def problems(notebook: nbformat.NotebookNode) -> Iterator[str]:
    """Yield what a reader would stumble over in the output of a notebook that ran."""
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            if output.output_type != "stream":
                continue
            if output.name == "stderr" or SUSPECT.search(output.text):
                yield f"{cell.source.splitlines()[0]} ... printed:\n{output.text.rstrip()}"


def write(notebook: nbformat.NotebookNode, name: str, out: Path) -> None:
    """Write `NAME.ipynb`, `NAME.md` and the pictures in `NAME_files`."""
    shutil.rmtree(out / f"{name}_files", ignore_errors=True)
    page = nbformat.from_dict(notebook)
    page.cells = [c for c in notebook.cells if "colab" not in c.metadata.get("tags", [])]
    body, resources = MarkdownExporter().from_notebook_node(
        page, {"output_files_dir": f"{name}_files", "unique_key": "picture"}
    )
    FilesWriter(build_directory=str(out)).write(body, resources, name)
    linked = nbformat.from_dict(notebook)
    for cell in linked.cells if (home := repository()) else ():
        if cell.cell_type == "markdown":
            pages = f"{GITHUB}{home}/blob/main/docs/"
            cell.source = re.sub(r"\]\(\.\./(\S+?\.md)", rf"]({pages}\1", cell.source)
    nbformat.write(linked, out / f"{name}.ipynb")


def run(path: Path, out: Path) -> list[str]:
    """Run one notebook, write its pages, and return its problems."""
    notebook = read(path)
    with tempfile.TemporaryDirectory(prefix="notebook-", ignore_cleanup_errors=True) as scratch:
        try:
            execute(notebook, Path(scratch))
            failures = []
        except (CellExecutionError, CellTimeoutError) as error:
            failures = [str(error)]
        except (DeadKernelError, AssertionError):  # the second hides the first in nbclient 0.11
            failures = ["its process died, perhaps for want of memory"]
    out.mkdir(parents=True, exist_ok=True)
    write(notebook, path.stem, out)  # as far as it ran
    return failures or list(problems(notebook))


def timed(path: Path, out: Path) -> tuple[float, list[str]]:
    """Return the seconds that `run` takes, and the problems it returns."""
    began = time.monotonic()
    found = run(path, out)
    return time.monotonic() - began, found


def main(argv: Sequence[str] | None = None) -> int:
    """Run notebooks and print their times; return 1 if any has a problem."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("numbers", nargs="*", type=int, metavar="NUMBER", help="default: all")
    parser.add_argument("--out", type=Path, default=OUT, help="folder of the results")
    parser.add_argument(
        "--jobs", type=int, default=1, help="notebooks that run at a time (default: 1)"
    )
    arguments = parser.parse_args(argv)
    wanted = [p for p in sources() if not arguments.numbers or int(p.stem[:2]) in arguments.numbers]
    failed = False
    with ProcessPoolExecutor(arguments.jobs) as pool:
        for path, (seconds, found) in zip(
            wanted, pool.map(timed, wanted, repeat(arguments.out)), strict=True
        ):
            print(f"{path.stem:<32} {seconds:6.1f} s", *found, sep="\n  ", flush=True)
            failed |= bool(found)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
