"""Pages of the reference: every public name of every public module, from its docstring."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

MODULES = {
    "tfbig": "streaming, budgets, slides and errors",
    "tfbig.layers": "layers that stream on their own",
    "tfbig.mil": "multiple instance learning",
    "tfbig.patchgd": "patch gradient descent",
    "tfbig.sources": "images and bags that are read in parts",
    "tfbig.tissue": "tissue, masks and stains",
    "tfbig.losses": "losses of sums over pixels",
    "tfbig.metrics": "metrics",
    "tfbig.optimizers": "optimizers",
    "tfbig.survival": "survival analysis",
    "tfbig.training": "the training loop",
    "tfbig.models": "networks and weights",
    "tfbig.ops": "operations of TensorFlow",
}
"""Public modules, in the order of the navigation."""

ONLY = {"tfbig.ops": ("tfbig.ops.blockwise_attention",)}
"""Modules of which a part is public: these modules of it."""


def file_of(module: str) -> Path:
    """Return the file of a module."""
    path = ROOT.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def page_of(module: str) -> str:
    """Return the page of a module: `tfbig.mil -> reference/mil.md`."""
    return f"reference/{module.rpartition('.')[2]}.md"


def names_of(module: str) -> list[str]:
    """Return the names in `__all__` of a module; without it, its public functions and classes."""
    tree = ast.parse(file_of(module).read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
            names: list[str] = ast.literal_eval(node.value)
            return names
    made = (node for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef))
    return [node.name for node in made if not node.name.startswith("_")]


def parts_of(module: str) -> tuple[str, ...]:
    """Return the modules whose names are on the page of a module."""
    if module in ONLY:
        return ONLY[module]
    if names_of(module):
        return (module,)
    files = sorted(file_of(module).parent.glob("*.py"))
    return tuple(f"{module}.{path.stem}" for path in files if path.name != "__init__.py")


def objects() -> Iterator[tuple[str, str]]:
    """Yield each public name with dots, and the module whose page has it; public modules have pages of their own."""
    for module in MODULES:
        for part in parts_of(module):
            for name in names_of(part):
                full = f"{part}.{name}"
                if full not in MODULES and not file_of(full).exists():
                    yield full, module


def page(module: str) -> str:
    """Return the page of a module."""
    lines = [
        f"# `{module}`",
        f"::: {module}\n    options:\n      members: false\n      show_root_heading: false\n",
    ]
    for part in parts_of(module):
        if part != module:
            lines += [
                f"## `{part}`",
                f"::: {part}\n    options:\n      members: false\n      show_root_heading: false\n",
            ]
        depth = 2 if part == module else 3
        lines += [
            f"::: {part}.{name}\n    options:\n      heading_level: {depth}\n"
            for name in names_of(part)
            if (f"{part}.{name}", module) in PUBLIC
        ]
    return "\n\n".join(lines)


def overview() -> str:
    """Return the first page of the reference: a table of the modules and their names."""
    rows = []
    for module, about in MODULES.items():
        leaf = page_of(module).rpartition("/")[2]
        names = [full for full, owner in PUBLIC_IN_ORDER if owner == module]
        links = ", ".join(f"[`{name.rpartition('.')[2]}`]({leaf}#{name})" for name in names)
        rows.append(f"| [`{module}`]({leaf}) | {about} | {links} |")
    head = ["# Python", "Every public name; each has an example that the tests run.", ""]
    return "\n".join([*head, "| module | | names |", "|---|---|---|", *rows, ""])


PUBLIC_IN_ORDER = list(objects())
PUBLIC = set(PUBLIC_IN_ORDER)


def pages() -> dict[str, str]:
    """Return the text of each page of the reference by its place."""
    texts = {page_of(module): page(module) for module in MODULES}
    return {"reference/index.md": overview(), **texts}
