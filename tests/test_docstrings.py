"""Every public name has an example in its docstring, and every example runs."""

from __future__ import annotations

import ast
import doctest
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfbig
from tfbig import layers, losses, metrics, mil, optimizers, patchgd, sources, survival, training

MODULES = (tfbig, layers, losses, metrics, mil, optimizers, patchgd, sources, survival, training)
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def public_objects() -> dict[str, Any]:
    """Functions and classes in the `__all__` of a public module, by dotted name, each once."""
    objects: dict[int, tuple[str, Any]] = {}
    for module in MODULES:
        for name in module.__all__:
            value = getattr(module, name)
            if callable(value) and not isinstance(value, ModuleType):
                objects.setdefault(id(value), (f"{module.__name__}.{name}", value))
    return dict(objects.values())


OBJECTS = public_objects()


def examples(name: str) -> list[doctest.DocTest]:
    """Doctests in the docstring of a public object and of its methods."""
    names = {"keras": keras, "np": np, "tf": tf, "tfbig": tfbig}
    finder = doctest.DocTestFinder(exclude_empty=True)
    return [test for test in finder.find(OBJECTS[name], name, globs=names) if test.examples]


@pytest.mark.parametrize("name", OBJECTS)
def test_public_name_has_an_example(name: str) -> None:
    assert examples(name), f"the docstring of {name} has no example"


@pytest.mark.parametrize("name", OBJECTS)
def test_examples_run(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    runner = doctest.DocTestRunner(optionflags=FLAGS)
    for test in examples(name):
        runner.run(test, clear_globs=False)
    assert runner.failures == 0, capsys.readouterr().out


SOURCES = sorted(Path(str(tfbig.__file__)).parent.glob("**/*.py"))


def test_arguments_are_described_in_words() -> None:
    """A renamed class must not have gone through prose, as in "size: PatchReader of each image"."""
    trees = {path: list(ast.walk(ast.parse(path.read_text(encoding="utf-8")))) for path in SOURCES}
    classes = {n.name for nodes in trees.values() for n in nodes if isinstance(n, ast.ClassDef)}
    compound = {name for name in classes if re.search("[a-z][A-Z]", name)}
    assert "PatchReader" in compound
    found = []
    for path, nodes in trees.items():
        for node in nodes:
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.Module):
                text = ast.get_docstring(node) or ""
                begins = re.findall(r"^\s*(\w+): ([A-Z]\w+) [a-z]", text, re.MULTILINE)
                found += [f"{path.name}: {name}: {w}" for name, w in begins if w in compound]
    assert not found
