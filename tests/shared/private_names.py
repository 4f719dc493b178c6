"""Uses of names that another package does not offer in public, found in the source of tfbig."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "docs"))

from draw_map import MODULES, tree

PRIVATE_PACKAGES = ("keras.src", "tensorflow.python")
ACCESSORS = {"getattr", "hasattr", "setattr", "delattr"}
OTHERS = {"_exit", "_mmap", "_replace"}
"""Names of `os`, `numpy.memmap` and named tuples that are public in spite of the underscore."""


def is_private(name: str) -> bool:
    """Return whether a name starts with one underscore."""
    return name.startswith("_") and not name.startswith("__")


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """Return all nodes of the tree of a file."""
    return tuple(ast.walk(tree(path)))


def own_names() -> set[str]:
    """Return the private names that the source of tfbig defines."""
    return {name for path in MODULES.values() for name in _defined(nodes(path)) if is_private(name)}


def _defined(module: tuple[ast.AST, ...]) -> Iterator[str]:
    for node in module:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            if isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"):
                yield node.attr
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


def private_uses(module: str, own: set[str]) -> set[str]:
    """Return the private names of other packages that a module uses.

    Args:
        module: Name of the module, such as "tfbig.plan.cost".
        own: Names that are tfbig's.

    Returns:
        Attributes such as "_flatten_layers", and imports such as "keras.src.backend.AutocastScope".
    """
    return set(_uses(nodes(MODULES[module]))) - own - OTHERS


def _uses(module: tuple[ast.AST, ...]) -> Iterator[str]:
    for node in module:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(PRIVATE_PACKAGES):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (a.name for a in node.names if a.name.startswith(PRIVATE_PACKAGES))
        elif isinstance(node, ast.Attribute) and (is_private(node.attr) or node.attr == "src"):
            yield node.attr
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            names = [a.value for a in node.args[1:2] if isinstance(a, ast.Constant)]
            if node.func.id in ACCESSORS:
                yield from (n for n in names if isinstance(n, str) and is_private(n))
