"""Small scenes with the files beside them, and outlines, and ways to damage them."""

from __future__ import annotations

import re
import shutil
import sqlite3
from contextlib import suppress
from pathlib import Path

import geopandas
import mutations
import numpy as np
import rasterio
import rasterio.enums
import rasterio.shutil
import shapely
from scene_files import UTM, pixels, write_scene

SUFFIXES = (".vrt", ".tif", ".geojson", ".gpkg")
VALUES = (
    *("", "0", "-1", "1", "3", "1e308", "-1e308", "nan", "inf", "2147483647", "4294967296", "99999999999999999999"),
    *("a.tif", "a.vrt", "b.vrt", "missing.tif", "/etc/passwd", "/vsicurl/http://127.0.0.1/a.tif", "\u00e9", "a\tb"),
    *("Byte", "CInt16", "CFloat64", "Int64", "UInt16", "mask,1", "average", "cubic", "Palette", "Alpha", "0,0,1,1"),
    *("OVERVIEWS", "VRTDerivedRasterBand", "KernelFilteredSource", "true", "&lt;VRTDataset/&gt;", "2 4 8"),
)  # fmt: skip
"""Texts that take the place of another one in XML."""


def write_scene_seeds(folder: Path) -> list[Path]:
    """Write one scene or file of outlines for each suffix, with the files beside it, and return their paths."""
    image = pixels(70, 90, 2)
    options = {
        "tiled": True,
        "blockxsize": 32,
        "blockysize": 32,
        "compress": "deflate",
        "nodata": 7,
    }
    path = write_scene(folder / "a.tif", image, names=("red", "nir"), **options)
    write_scene(folder.parent / "scene.tif", image)
    with rasterio.Env(GDAL_TIFF_INTERNAL_MASK=True), rasterio.open(path, "r+") as file:
        file.write_mask(np.full((70, 90), 255, np.uint8))
    with rasterio.Env(TIFF_USE_OVR=True), rasterio.open(path, "r+") as file:
        file.build_overviews([2, 4], rasterio.enums.Resampling.nearest)
    (folder / "a.tif.aux.xml").write_text(
        '<PAMDataset><SRS>EPSG:32632</SRS><Metadata domain="x"><MDI key="a">b</MDI></Metadata><PAMRasterBand band="1">'
        "<NoDataValue>7</NoDataValue><Description>red</Description><UnitType>m</UnitType></PAMRasterBand></PAMDataset>"
    )
    (folder / "a.tfw").write_text("10\n0\n0\n-10\n500005\n5999995\n")
    rasterio.shutil.copy(path, folder / "b.vrt", driver="VRT")
    text = (folder / "b.vrt").read_text()
    complexes = text.replace("SimpleSource", "ComplexSource").replace(
        "</ComplexSource>",
        "<ScaleOffset>1</ScaleOffset><ScaleRatio>2</ScaleRatio><LUT>0:0,9:9</LUT></ComplexSource>",
    )
    (folder / "a.vrt").write_text(complexes)
    shapes = [shapely.Point(5e5 + 100 * n, 6e6 - 90 * n).buffer(60) for n in range(6)]
    table = geopandas.GeoDataFrame(
        {"kind": list("aabbcc"), "height": np.arange(6.0), "count": range(6)},
        geometry=shapes,
        crs=UTM,
    )
    table.to_file(folder / "a.gpkg")
    table.to_crs("EPSG:4326").to_file(folder / "a.geojson")
    return [folder / f"a{suffix}" for suffix in SUFFIXES]


def damaged_scene(seed: Path, folder: Path, rng: np.random.Generator) -> Path:
    """Copy all seeds into a new folder, and damage one, or one that belongs to it; return its path."""
    shutil.copytree(seed.parent, folder)
    path = folder / seed.name
    others = {
        ".tif": ["a.tif", "a.tif", "a.tif.ovr", "a.tif.aux.xml", "a.tfw"],
        ".vrt": ["a.vrt"] * 4 + ["a.tif"],
    }
    names = others.get(seed.suffix, [seed.name])
    victim = folder / names[int(rng.integers(len(names)))]
    if victim.name.endswith((".vrt", ".xml")) and rng.random() < 0.85:
        victim.write_text(_by_element(victim.read_text(), rng))
    elif victim.suffix == ".gpkg" and rng.random() < 0.5:
        _by_cell(victim, rng)
    elif victim.name == "a.tif.ovr":
        whole = victim.with_name("ovr.tif")
        victim.rename(whole)
        mutations.damaged(whole, victim, rng)
    else:
        shutil.copy(victim, folder / f"whole{victim.suffix}")
        mutations.damaged(folder / f"whole{victim.suffix}", victim, rng)
    final = folder / f"{folder.name}{path.suffix}"
    for file in sorted(folder.glob("a.t*")) if path.suffix == ".tif" else ():
        file.rename(folder / file.name.replace("a.", f"{folder.name}.", 1))
    if path.suffix != ".tif":
        path.rename(final)
    return final


def _by_element(text: str, rng: np.random.Generator) -> str:
    """Replace, remove, repeat or nest values, names and elements of XML."""
    for _ in range(int(rng.integers(1, 4))):
        found = [
            *re.finditer(r'(?<==")[^"]*(?=")|(?<=>)[^<>]+(?=<)', text),
            *re.finditer(r"<(\w+)[^<>]*>[^<>]*</\1>|<\w+[^<>]*/>", text),
            *re.finditer(r"(?<=<)\w+|(?<=</)\w+", text),
        ]
        if not found:
            return text
        one = found[int(rng.integers(len(found)))]
        kind = rng.integers(6)
        value = VALUES[int(rng.integers(len(VALUES)))]
        if kind == 0:
            value = ""
        elif kind == 1:
            value = one[0] * int(rng.choice([2, 50]))
        elif kind == 2:
            value = found[int(rng.integers(len(found)))][0]
        elif kind == 3:
            value = one[0].swapcase()
        text = text[: one.start()] + value + text[one.end() :]
    return text


def _by_cell(path: Path, rng: np.random.Generator) -> None:
    """Replace cells, remove rows, or drop tables of a GeoPackage."""
    values = [
        None,
        -1,
        0,
        1,
        2**63 - 1,
        1e308,
        float("inf"),
        "",
        "x",
        "b",
        b"",
        b"GP\0\1",
        b"\0" * 40,
    ]
    base = sqlite3.connect(path)
    tables = [row[0] for row in base.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    tables = [name for name in tables if not name.startswith(("rtree", "sqlite"))]
    for (name,) in base.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
        base.execute(f'DROP TRIGGER "{name}"')
    for _ in range(int(rng.integers(1, 4))):
        table = tables[int(rng.integers(len(tables)))]
        columns = [row[1] for row in base.execute(f'PRAGMA table_info("{table}")')]
        if not columns:
            continue
        column = columns[int(rng.integers(len(columns)))]
        kind = rng.integers(8)
        with suppress(sqlite3.Error):
            if kind == 0:
                base.execute(f'DROP TABLE "{table}"')
            elif kind == 1:
                base.execute(f'DELETE FROM "{table}"')
            elif kind == 2 and len(columns) > 1:
                base.execute(f'ALTER TABLE "{table}" RENAME COLUMN "{column}" TO "other"')
            else:
                value = values[int(rng.integers(len(values)))]
                base.execute(f'UPDATE OR IGNORE "{table}" SET "{column}" = ?', (value,))
    base.commit()
    base.close()
