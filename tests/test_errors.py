"""Texts of errors."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import tfbig
import tfbig.sources
import tfbig.tissue
from tfbig.errors import one_line, reason_of


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (ValueError("a\n  b\x1b[0m."), "a b?[0m."),
        ("a\r\n\tb\x7f", "a b?"),
        (KeyError("größe"), "'größe'"),
        ("a\udcff", "a?"),
        ("", ""),
    ],
)
def test_one_line(text: object, line: str) -> None:
    assert one_line(text) == line


def test_reason_in_a_sentence() -> None:
    assert reason_of(ValueError("a\nb.")) == "a b"
    assert reason_of(ValueError()) == "ValueError"
    assert reason_of("x" * 1000) == "x" * 297 + "..."
    assert reason_of("x" * 300) == "x" * 300


ARGUMENT = re.compile(r"(?<![\w-])[a-z_]+=|`[a-z_.]+`|\b(tfbig|keras|numpy)\.\w|\b[a-z_]+\(")
"""Names of Python in a message: arguments, attributes and calls."""
PACKAGES = ("sources", "tissue", "results", "engine", "stores", "system", "patchgd", "plan", "data")
"""Packages whose errors are of files and machines, and so reach users of the command line."""
REFUSALS = {
    *("SourceError", "BudgetError", "SmallImageError", "UnifiedMemoryError"),
    *("ScaledError", "UndecodableError"),
}
IN_PYTHON_ALONE = {
    "arrays.py": "of arrays and memory maps in memory",
    "masked.py": "of `cell`, for which there is no flag",
    "masking.py": "of slides whose tissue and pixels `cli/data/background.py` checks first",
    "views.py": "of volumes in a unit of their own, whose real values commands stack",
    "writing.py": "of `write_npy`, which only Python calls",
}
"""Modules with errors that no command reaches, and why."""


def names_of_modules() -> set[str]:
    """Public names of tfbig that are no words of English."""
    public = {*tfbig.__all__, *tfbig.sources.__all__, *tfbig.tissue.__all__}
    return {name for name in public if re.search("_|[a-z][A-Z]", name)}


def texts(node: ast.AST) -> str:
    """The constant text of an expression."""
    return "".join(
        part.value
        for part in ast.walk(node)
        if isinstance(part, ast.Constant) and isinstance(part.value, str)
    )


def messages(path: Path) -> Iterator[str]:
    """The constant text of each error of a file or a machine that a module raises, without its advice."""
    for node in ast.walk(ast.parse(path.read_text())):
        called = getattr(node, "func", None)
        if isinstance(node, ast.Call) and isinstance(called, ast.Name) and called.id in REFUSALS:
            yield "".join(map(texts, node.args))


@pytest.mark.parametrize("package", PACKAGES)
def test_messages_that_reach_the_command_line_name_no_python(package: str) -> None:
    """Errors say what to do by an `Advice` where they name arguments, so that the command line can name flags."""
    named = re.compile(rf"\b({'|'.join(names_of_modules())})\b")
    modules = Path(tfbig.__file__).parent.joinpath(package).rglob("*.py")
    found = {path.name: [*messages(path)] for path in modules}
    assert any(found.values()) or package in ("results", "data")
    wrong = {
        name: text
        for name, each in found.items()
        for text in each
        if ARGUMENT.search(text) or named.search(text)
    }
    assert {name: text for name, text in wrong.items() if name not in IN_PYTHON_ALONE} == {}
