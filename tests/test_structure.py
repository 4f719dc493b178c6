"""The shape of the code: imports go one way, what is pure stays so, files and functions stay small."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "tfbig"

ORDER = [
    "backend",
    "replication",
    "errors",
    "units",
    "stopping",
    "parts",
    "epochs",
    "own",
    "cgroups",
    "budget",
    "geometry",
    "grids",
    "graph",
    "schedule",
    "segments",
    "ranges",
    "lifetimes",
    "plan",
    "cost",
    "strips",
    "cuts",
    "layouts",
    "planner",
    "sources",
    "digits",
    "moments",
    "random",
    "pages",
    "scratch",
    "progress",
    "stores",
    "reading",
    "rates",
    "unified",
    "labels",
    "kernels",
    "resident",
    "phase",
    "rules",
    "instances",
    "network",
    "split",
    "split_planner",
    "losses",
    "objective",
    "metrics",
    "roc",
    "optimizers",
    "attention",
    "state",
    "tapes",
    "visits",
    "sweeps",
    "sharing",
    "engine",
    "binding",
    "layers",
    "failures",
    "halves",
    "programs",
    "steps",
    "stream",
    "mil",
    "patchgd",
    "tissue",
    "tiling",
    "geojson",
    "runfolder",
    "windows",
    "training",
    "zoom",
    "heat",
    "pictures",
    "report",
]
"""Modules of tfbig, lowest first: each may import those above it in this list."""

SOURCES = [
    "source",
    "files",
    "arrays",
    "resolution",
    "georeference",
    "claims",
    "tiff_layout",
    "tiff",
    "views",
    "slide",
    "vendor",
    "zarrs",
    "opening",
    "bags",
    "hdf5",
    "bag_files",
    "patches",
    "tiles",
    "writing",
    "ome",
    "coords",
    "augmented",
    "handles",
]
"""The same for `tfbig.sources`."""

PURE = [
    *(
        "errors",
        "units",
        "stopping",
        "budget",
        "geometry",
        "grids",
        "graph",
        "schedule",
        "segments",
        "ranges",
    ),
    *("lifetimes", "plan", "cost", "strips", "cuts", "layouts", "planner", "sources"),
]
"""What runs without TensorFlow and Keras."""

MAX_FILE_LINES = 600
MAX_FUNCTION_LINES = 60
NAMELESS = {"utils", "util", "helpers", "helper", "manager", "misc", "common"}

FILES = sorted(PACKAGE.rglob("*.py"))
relative = [str(path.relative_to(PACKAGE)) for path in FILES]
every_file = pytest.mark.parametrize("path", FILES, ids=relative)


def module_of(path: Path) -> str:
    """`tfbig/sources/tiff.py -> tfbig.sources.tiff`."""
    parts = ("tfbig", *path.relative_to(PACKAGE).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_of(path): path for path in FILES}


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def imports(module: str) -> frozenset[str]:
    """Every module that a module imports, in functions too; `from tfbig import plan` is tfbig.plan."""
    found = set()
    for node in ast.walk(tree(MODULES[module])):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}, line {node.lineno}: import by the full name"
            assert node.module is not None
            inner = {f"{node.module}.{alias.name}" for alias in node.names} & MODULES.keys()
            found |= inner or {node.module}
    return frozenset(found)


def part(module: str) -> str:
    """`tfbig.sources.tiff -> sources`; empty for `tfbig` itself."""
    return module.partition(".")[2].partition(".")[0]


def test_order_names_every_module() -> None:
    assert sorted(ORDER) == sorted({part(m) for m in MODULES} - {""})
    assert len(ORDER) == len(set(ORDER))
    inner = {m.removeprefix("tfbig.sources.") for m in MODULES if m.startswith("tfbig.sources.")}
    assert sorted(SOURCES) == sorted(inner)


@pytest.mark.parametrize("module", [m for m in MODULES if part(m)])
def test_imports_go_one_way(module: str) -> None:
    own = part(module)
    for imported in imports(module):
        if imported == "tfbig" or imported.startswith("tfbig."):
            other = part(imported)
            assert other, f"{module} imports the package that imports it"
            if other != own:
                assert ORDER.index(other) < ORDER.index(own), f"{module} imports {imported}"


@pytest.mark.parametrize("name", SOURCES)
def test_imports_of_sources_go_one_way(name: str) -> None:
    for imported in imports(f"tfbig.sources.{name}"):
        if imported.startswith("tfbig.sources"):
            other = imported.removeprefix("tfbig.sources").removeprefix(".")
            assert other, f"tfbig.sources.{name} imports the package that imports it"
            assert SOURCES.index(other) < SOURCES.index(name), f"{name} imports {other}"


def reached(module: str) -> set[str]:
    """Everything that a module imports, directly or not; packages on the way stay unopened but `sources`."""
    found: set[str] = set()
    waiting = [module]
    while waiting:
        for imported in imports(waiting.pop()) - found:
            found.add(imported)
            if imported in MODULES and imported != "tfbig":
                waiting.append(imported)
    return found


@pytest.mark.parametrize("module", [m for m in MODULES if part(m) in PURE])
def test_pure_modules_reach_neither_tensorflow_nor_keras(module: str) -> None:
    roots = {imported.partition(".")[0] for imported in reached(module)}
    assert not roots & {"tensorflow", "keras"}


def test_the_other_modules_do_reach_tensorflow() -> None:
    """So the walk above finds something."""
    assert "tensorflow" in {imported.partition(".")[0] for imported in reached("tfbig.network")}


@every_file
def test_files_are_short(path: Path) -> None:
    lines = len(path.read_text(encoding="utf-8").splitlines())
    assert lines <= MAX_FILE_LINES, f"{path.name} has {lines} lines; split it by noun"


@every_file
def test_functions_are_short(path: Path) -> None:
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            lines = node.end_lineno - node.lineno + 1
            assert lines <= MAX_FUNCTION_LINES, f"{path.name}: {node.name} has {lines} lines"


@every_file
def test_files_say_what_they_are(path: Path) -> None:
    assert not NAMELESS & set(path.relative_to(PACKAGE).with_suffix("").parts)
    assert ast.get_docstring(tree(path)), f"{path.name} has no docstring"
