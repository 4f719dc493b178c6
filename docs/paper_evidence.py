"""Evidence for the rows of docs/papers.yaml: tests, and lines of benchmarks/results.jsonl.

A row names its evidence in `shown_by`, a list. A test is `FOLDER/test_FILE.py::test_NAME`, its path below `tests/`.
A line is `results: KEY=VALUE; KEY=VALUE`, the conditions of `write_papers.figure`, of which one is `case`.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
TESTS = ROOT / "tests"
SHARED = TESTS / "shared"
RESULTS = ROOT / "benchmarks/results.jsonl"
MARKS = ("slow", "memory", "torch", "gpu")
"""Marks of tests that do not run by default."""

NOT_BUILT = "missing"
"""State of rows of which nothing is built; they need no evidence, and say "not built"."""

TEST = re.compile(r"(?:[a-z_]+/)*test_\w+\.py::test_\w+")
NAMES_A_TEST = re.compile(r"test_\w+\.py")
FIGURE = re.compile(r"\{([^{}|]+)\|")
PARSED_ONLY = ("cli/test_recipes.py", "test_configs.py")
"""Files of tests that read settings and run nothing."""
PARSERS = {"settings_of", "parse_args", "parse_arguments", "safe_load", "load_yaml", "read_yaml"}
PLAIN = {
    *("read_text", "approx", "raises", "str", "len", "list", "set", "dict", "int"),
    *("float", "sorted", "getattr", "items", "keys", "values", "startswith", "next", "replace"),
    *("flags_of", "saved_value", "type", "all", "any", "zip", "removesuffix", "split"),
    *PARSERS,
}
"""Calls that show nothing but what was written in a file of settings."""

Line = Mapping[str, Any]


def meeting(lines: Iterable[Line], conditions: str) -> list[Line]:
    """Return the lines that meet all conditions, `key=value; key=value`."""
    wanted = [word.strip().split("=", 1) for word in conditions.split(";")]
    return [line for line in lines if all(str(line.get(key)) == text for key, text in wanted)]


@functools.cache
def functions(path: Path) -> Mapping[str, ast.FunctionDef]:
    """Return the functions of a file by name."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}


@functools.cache
def reachable(path: Path) -> Mapping[str, ast.FunctionDef]:
    """Return the functions of a file, and those that it imports from `tests/shared`, by name."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    found: dict[str, ast.FunctionDef] = {}
    for node in imports:
        shared = SHARED / f"{node.module}.py"
        known = functions(shared) if shared.exists() else {}
        found |= {name.name: known[name.name] for name in node.names if name.name in known}
    return found | functions(path)


def marks(name: str) -> list[str]:
    """Return those of `MARKS` that a test, `FILE::NAME`, has, or its whole file."""
    file, _, function = name.partition("::")
    tree = ast.parse((TESTS / file).read_text(encoding="utf-8"))
    of_file = [
        n.value for n in tree.body if isinstance(n, ast.Assign) and "pytestmark" in _names(n)
    ]
    decorators = functions(TESTS / file)[function].decorator_list
    found = {_mark(each) for each in (*of_file, *decorators)}
    return [mark for mark in MARKS if mark in found]


def faults(row: Mapping[str, Any], lines: Iterable[Line]) -> list[str]:
    """Return what is wrong with the evidence of a row; nothing if it can be what the row says.

    Args:
        row: A row of docs/papers.yaml.
        lines: Lines of benchmarks.
    """
    shown, lines = row.get("shown_by", []), list(lines)
    found = [fault for item in shown for fault in _faults_of(item, lines)]
    if row["state"] == NOT_BUILT:
        found += [] if "not built" in row["how"] else ["does not say 'not built'"]
    elif not shown:
        found.append(f"state '{row['state']}' without evidence")
    if NAMES_A_TEST.search(row["how"]):
        found.append("names a test in 'how'; put it in 'shown_by'")
    cases = {_case(item.get("results", "")) for item in shown if isinstance(item, Mapping)}
    quoted = {_case(conditions) for conditions in FIGURE.findall(row["how"])}
    return found + [f"quotes '{case}' and does not name its line" for case in quoted - cases]


def _faults_of(item: Any, lines: list[Line]) -> list[str]:
    if isinstance(item, Mapping) and set(item) == {"results"}:
        if not _case(item["results"]):
            return [f"'{item['results']}' names no case"]
        there = meeting(lines, item["results"])
        return [] if there else [f"{RESULTS.name} has no line with {item['results']}"]
    if not isinstance(item, str) or not TEST.fullmatch(item):
        return [f"'{item}' is neither FILE::TEST nor results"]
    file, _, name = item.partition("::")
    if file in PARSED_ONLY:
        return [f"tests/{file} only reads settings"]
    if not (TESTS / file).exists():
        return [f"tests/{file} does not exist"]
    known = functions(TESTS / file)
    if name not in known:
        return [f"tests/{file} has no {name}"]
    called = _calls(known[name])
    if called & PARSERS and called <= PLAIN:
        return [f"{item} only reads settings"]
    asserting = asserts(known[name], reachable(TESTS / file))
    return [] if asserting else [f"{item} asserts nothing"]


def asserts(function: ast.FunctionDef, others: Mapping[str, ast.FunctionDef]) -> bool:
    """Return whether a function asserts something, itself or in another function that it calls.

    Args:
        function: The function.
        others: Functions that it may call, by name.
    """
    if any(isinstance(node, ast.Assert) for node in ast.walk(function)):
        return True
    others = {name: each for name, each in others.items() if each is not function}
    called = _calls(function)
    if "raises" in called or any(name.startswith(("assert_", "check")) for name in called):
        return True
    return any(asserts(others[name], others) for name in called & others.keys())


def _calls(function: ast.FunctionDef) -> set[str]:
    """Return the last part of the name of everything that is called in a function."""
    calls = (node.func for node in ast.walk(function) if isinstance(node, ast.Call))
    parts = (f.attr if isinstance(f, ast.Attribute) else getattr(f, "id", "") for f in calls)
    return {part for part in parts if part}


def _case(conditions: str) -> str:
    words = (word.strip().partition("=") for word in conditions.split(";"))
    return next((value for key, _, value in words if key == "case"), "")


def _names(node: ast.Assign) -> set[str]:
    return {target.id for target in node.targets if isinstance(target, ast.Name)}


def _mark(node: ast.expr) -> str:
    """Return the name of a mark: `pytest.mark.slow`, or the variable `slow` that holds it."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""
