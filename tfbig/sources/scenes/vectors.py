"""Files of outlines, which are checked and then read by the one driver of GDAL that their suffix stands for."""

from __future__ import annotations

import json
import mmap
import os
import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from tfbig.errors import SourceError, reason_of
from tfbig.sources import trial, untrusted
from tfbig.sources.files import Package, PathLike
from tfbig.units import counted

SUFFIXES: Final = (".geojson", ".json", ".gpkg", ".shp", ".fgb")
"""Suffixes of files of outlines."""
MOST_COLUMNS: Final = 10_000
"""Largest number of columns, or of names in a GeoJSON file."""
_SIGNATURES: Final = {
    ".gpkg": (b"SQLite format 3\0",),
    ".shp": (b"\0\0\x27\x0a",),
    ".fgb": (b"fgb",),
}
"""First bytes of files by suffix; a GeoJSON file is known by the name that GDAL gets."""
_BESIDE: Final = {
    ".shp": (".shx", ".dbf", ".prj", ".cpg", ".qix", ".sbn", ".sbx", ".idm", ".ind", ".qpj"),
    ".gpkg": (".gpkg-wal", ".gpkg-shm", ".gpkg-journal"),
}
"""Endings of the files that belong to a file of outlines, by its suffix."""
_NAME: Final = re.compile(rb'(?<!\\)"((?:[^"\\]|\\.){0,300})"\s*:')
_CRS: Final = re.compile(
    rb"([\"'])(?:c|\\u00[46]3)(?:r|\\u00[57]2)(?:s|\\u00[57]3)\1\s*(?:(/)|:\s*([{/]))",
    re.IGNORECASE,
)
"""A member `crs` of GeoJSON that is an object; its name has any case, and letters may be written as their numbers."""
_MOST_SYSTEMS: Final = 100
_MOST_CRS: Final = 2**16


def files(path: PathLike) -> list[Path]:
    """List a file of outlines and the files beside it that belong to it, as those of a shapefile do.

    Raises:
        SourceError: One of them is no regular file.
    """
    path = Path(path)
    untrusted.regular_file(path)
    endings = _BESIDE.get(path.suffix.lower(), ())
    with untrusted.reading(path):
        names = sorted(os.listdir(path.absolute().parent))
    known = {path.stem.lower() + ending for ending in endings}
    found = [path.with_name(name) for name in names if name.lower() in known]
    for each in found:
        untrusted.regular_file(each)
    return [path, *found]


def information(path: PathLike, bounds: bool = False) -> dict[str, Any]:
    """Read what pyogrio says about a file of outlines, with the rectangle around all if `bounds` is set.

    Raises:
        SourceError: It cannot be read, is not what its suffix says, or may read from elsewhere; it has too many columns
            or outlines for its length; GDAL ends its process on it; or geopandas is not installed.
    """
    pyogrio, name = _pyogrio(path), _checked(path)
    with untrusted.reading(path, "cannot be read as outlines"):
        info: dict[str, Any] = pyogrio.read_info(
            name, force_total_bounds=bounds, force_feature_count=True
        )
        columns, rows = len(info["fields"]), max(int(info["features"]), 0)
    _check_columns(path, columns)
    untrusted.check_size(path, rows * 64, "its table of outlines")
    return info


def table(path: PathLike, columns: list[str], area: Any = None) -> Any:
    """Read outlines, with some columns, as a GeoDataFrame.

    `area` is least and greatest x and y of what is read; None for everything.

    Raises:
        SourceError: As of `information`.
    """
    pyogrio, name = _pyogrio(path), _checked(path)
    with untrusted.reading(path, "cannot be read as outlines"):
        return pyogrio.read_dataframe(name, columns=columns, bbox=area)


def _pyogrio(path: PathLike) -> Any:
    for module in ("geopandas", "pyogrio"):
        package = Package(module)
        if package.missing:
            raise SourceError(
                f"{path}: outlines need geopandas ({package.missing}). Run pip install 'tfbig[scenes]'."
            )
    return package


def _checked(path: PathLike) -> str:
    """The name of a checked file for GDAL."""
    suffix = Path(path).suffix.lower()
    if suffix not in SUFFIXES:
        raise SourceError(
            f"{path}: is not read as outlines; expected one of {', '.join(SUFFIXES)}."
        )
    files(path)
    name = os.path.abspath(path)
    if suffix not in _SIGNATURES:
        with untrusted.reading(path, "cannot be read as outlines"):
            _check_json(path)
        return f"GeoJSON:{name}"
    with untrusted.reading(path), open(path, "rb") as file:
        start = file.read(72)
    right = start.startswith(_SIGNATURES[suffix])
    if not right or (suffix == ".gpkg" and start[68:71] not in (b"GPK", b"GP1")):
        raise SourceError(
            f"{path}: cannot be read as outlines: it is no file *{suffix}, by its first bytes."
        )
    if suffix == ".gpkg":
        with untrusted.reading(path, "cannot be read as outlines"):
            _check_tables(path)
    trial.check("outlines", path)
    return name


def _check_json(path: PathLike) -> None:
    """Raise SourceError for a GeoJSON file with very many names, or a coordinate system that is elsewhere."""
    if not untrusted.regular_file(path).st_size:
        raise SourceError(f"{path}: cannot be read as outlines: it is empty.")
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        names = set[bytes]()
        for found in _NAME.finditer(content):
            names.add(found[1])
            if len(names) > MOST_COLUMNS:
                _check_columns(path, len(names))
        for number, system in enumerate(_CRS.finditer(content)):
            start = system.end() - 1
            if number == _MOST_SYSTEMS or content[start : start + 1] == b"/":
                raise SourceError(
                    f"{path}: cannot be read as outlines: it has a comment, or more than {_MOST_SYSTEMS} coordinate "
                    "systems. Write it again."
                )
            _check_system(path, content[start : start + _MOST_CRS].decode(errors="replace"))


def _check_system(path: PathLike, text: str) -> None:
    """Raise SourceError for a coordinate system that is an address, which GDAL would ask for it."""
    value, _ = json.JSONDecoder().raw_decode(text)
    kind = value.get("type") if isinstance(value, dict) else "name"
    if not str(kind).lower().startswith(("name", "epsg", "ogc", "none")):
        raise SourceError(
            f"{path}: its coordinate system is at an address; expected its name, as EPSG:4326. Write it to the file."
        )


def _check_tables(path: PathLike) -> None:
    """Raise SourceError for a GeoPackage with anything that is computed when it is read, which may take for ever."""
    address = f"file:{quote(os.path.abspath(path))}?mode=ro&immutable=1"
    with closing(sqlite3.connect(address, uri=True)) as base:
        for kind, name, sql in base.execute("SELECT type, name, sql FROM sqlite_master").fetchall():
            if str(sql).upper().startswith("CREATE VIRTUAL"):
                computed = not name.startswith("rtree_")
            else:
                computed = kind == "view" or (kind == "table" and _has_expressions(base, name))
            if computed:
                raise SourceError(
                    f"{path}: its table {reason_of(name, 60)} is computed as it is read, by a view or an "
                    "expression; expected stored rows. Export the layer to a new file."
                )


def _has_expressions(base: sqlite3.Connection, table: str) -> bool:
    """Tell whether a table has columns of expressions."""
    hidden = base.execute("SELECT max(hidden) FROM pragma_table_xinfo(?)", (table,)).fetchone()[0]
    return hidden is not None and hidden > 1


def _check_columns(path: PathLike, count: int) -> None:
    if count > MOST_COLUMNS:
        raise SourceError(
            f"{path}: has {counted(count, 'column')} or more; expected at most {MOST_COLUMNS}. Write those that "
            "you need."
        )
