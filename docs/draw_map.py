"""Draws docs/map.png: the packages of tfbig in levels, and which imports which. Run `python docs/draw_map.py`."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "tfbig"


def module_of(path: Path) -> str:
    """Dotted name of a file: `tfbig/sources/files.py -> tfbig.sources.files`."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _files() -> list[Path]:
    linked = [PACKAGE / "models" / path.name for path in (ROOT / "models").glob("*.py")]
    return sorted({*PACKAGE.rglob("*.py"), *linked})


MODULES = {module_of(path): path for path in _files()}
"""Every module of the package and its file; the files of `models/` are seen through the link."""


@cache
def tree(path: Path) -> ast.Module:
    """Syntax tree of a file."""
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def imports(module: str) -> frozenset[str]:
    """Modules that a module imports anywhere; `from tfbig.plan import cost` counts as `tfbig.plan.cost`."""
    names: set[str] = set()
    for node in ast.walk(tree(MODULES[module])):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            if node.level or node.module is None:
                raise ValueError(f"{module}, line {node.lineno}: import by the full name")
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                names.add(full if full in MODULES else node.module)
    return frozenset(names)


def package_of(module: str) -> str:
    """First part below tfbig: `tfbig.sources.files -> sources`; empty for `tfbig` itself."""
    return module.partition(".")[2].partition(".")[0]


def package_graph() -> dict[str, set[str]]:
    """Packages, and single modules beside them, with the packages that each imports."""
    graph: dict[str, set[str]] = {package_of(module): set() for module in MODULES}
    for module in MODULES:
        for imported in imports(module):
            if imported.split(".")[0] == "tfbig" and package_of(imported) != package_of(module):
                graph[package_of(module)].add(package_of(imported))
    return graph


def levels(graph: dict[str, set[str]]) -> dict[str, int]:
    """Level of each package: one above the highest that it imports, 0 without imports.

    Raises:
        ValueError: packages import each other in a circle.
    """
    known: dict[str, int] = {}

    def visit(name: str, path: tuple[str, ...]) -> int:
        if name in path:
            circle = " -> ".join([*path[path.index(name) :], name])
            raise ValueError(f"packages import each other in a circle: {circle}")
        if name not in known:
            known[name] = max((visit(n, (*path, name)) + 1 for n in graph[name]), default=0)
        return known[name]

    for name in graph:
        visit(name, ())
    return known


def direct(graph: dict[str, set[str]]) -> set[tuple[str, str]]:
    """Imports that no chain of other imports implies."""

    @cache
    def below(name: str) -> frozenset[str]:
        return frozenset(graph[name]).union(*(below(n) for n in graph[name]))

    return {
        (a, b) for a in graph for b in graph[a] if not any(b in below(c) for c in graph[a] - {b})
    }


def lines_in(package: str) -> int:
    """Lines of code of a package, docstrings and blank lines included."""
    files = {p.resolve() for m, p in MODULES.items() if package_of(m) == package}
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in files)


def draw(target: Path) -> None:
    """Writes the picture."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    graph = package_graph()
    level = levels(graph)
    rows: dict[int, list[str]] = {}
    for name in sorted(graph, key=lambda n: (level[n], n)):
        rows.setdefault(level[name], []).append(name)
    width = max(map(len, rows.values()))
    place = {
        name: ((i + 0.5) * width / len(row), y)
        for y, row in rows.items()
        for i, name in enumerate(row)
    }
    figure, axes = plt.subplots(figsize=(1.7 * width, 0.9 * len(rows)), layout="constrained")
    for above, below in sorted(direct(graph)):
        axes.annotate(
            "",
            (place[below][0], place[below][1] + 0.24),
            (place[above][0], place[above][1] - 0.24),
            arrowprops={"arrowstyle": "->", "color": "#8899aa", "linewidth": 0.9},
        )
    for name, (x, y) in place.items():
        text = f"{name or 'tfbig'}\n{lines_in(name)} lines"
        axes.text(
            x,
            y,
            text,
            ha="center",
            va="center",
            fontsize=8,
            bbox={"boxstyle": "round,pad=0.35", "facecolor": "#eef3f8", "edgecolor": "#445566"},
        )
    axes.set(xlim=(0, width), ylim=(-0.5, len(rows) - 0.5))
    axes.axis("off")
    figure.savefig(target, dpi=110)
    plt.close(figure)


if __name__ == "__main__":
    draw(ROOT / "docs" / "map.png")
