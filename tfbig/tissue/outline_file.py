"""GeoJSON files of outlines: which of them count as the object, and which pixel they are counted from."""

from __future__ import annotations

import gzip
import io
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import shapely
from shapely.affinity import translate

from tfbig.choices import ORIGINS
from tfbig.errors import Advice, SourceError
from tfbig.sources.files import PathLike
from tfbig.units import counted

SUFFIXES: Final = (".geojson", ".json", ".geojson.gz", ".json.gz")
"""Ends of the names of files of outlines."""
SCANNED, LEVEL_0 = ORIGINS
MOST_BYTES: Final = 2**30
"""Largest size of a file after it is decompressed."""
_IGNORED: Final = "ignore*"
_ZIP: Final = b"PK\x03\x04"
_GZIP: Final = b"\x1f\x8b"


@dataclass(frozen=True)
class OutlineRule:
    """The outlines of a file that count as the object, and the place that they are counted from.

    Outlines of classes whose name ends with `*`, such as `Ignore*`, do not count, as in QuPath. Of the others, those
    count that have the class of the file; outlines without a class count if no outline has one. Where a file has
    several classes, `classes` must name those that count.

    Args:
        classes: Names of the classes that count, in any case; `Tumor` includes `Tumor: Positive`. `Ignore*` never
            counts.
        origin: "scanned": coordinates are counted from the corner of the scanned area, as QuPath does; "level-0": from
            the corner of level 0. They differ where `Slide.origin` is not 0 (MRXS, SCN, BIF). A file that says so
            itself, as `tfbig` writes it, wins.

    Raises:
        ValueError: `origin` is unknown.

    Example:
        >>> tfbig.tissue.OutlineRule(("Tumor",)).origin
        'scanned'
    """

    classes: tuple[str, ...] = ()
    origin: str = SCANNED

    def __post_init__(self) -> None:
        if self.origin not in ORIGINS:
            raise ValueError(
                f"received origin '{self.origin}'; expected one of {', '.join(ORIGINS)}."
            )


class Outlines(NamedTuple):
    """Outlines that count.

    Args:
        polygons: Valid polygons in pixels of level 0: x and y.
        note: Which outlines count, which do not, and by how much they were shifted, in one line; empty if all polygons
            of the file have one class and were not shifted.
    """

    polygons: list[shapely.Geometry]
    note: str


class _Outline(NamedTuple):
    name: str
    polygon: shapely.Geometry


def is_outline_file(path: PathLike) -> bool:
    """Tell whether a file is one of outlines, by its name."""
    return Path(path).name.lower().endswith(SUFFIXES)


def read_outlines(
    path: PathLike,
    shape: tuple[int, int],
    origin: tuple[int, int] = (0, 0),
    rule: OutlineRule | None = None,
    name: str = "the image",
) -> Outlines:
    """Read the outlines of a slide that count as the object.

    The GeoJSON may be compressed by gzip: a FeatureCollection, a list of features, a feature or a geometry.
    Polygons and multipolygons count, also those in a GeometryCollection. `shape` is rows and columns of the slide
    at level 0, `origin` is `Slide.origin`, `name` is for errors.

    Raises:
        SourceError: The file is not GeoJSON, no outline counts, several classes could count, or none is on the slide.
    """
    rule = rule or OutlineRule()
    found, passed, said = _read(Path(path))
    chosen, others = _chosen(path, found, rule)
    row, column = origin if (said or rule.origin) == SCANNED else (0, 0)
    polygons = [shapely.make_valid(translate(each.polygon, column, row)) for each in chosen]
    rows, columns = shape
    inside = shapely.intersects(polygons, shapely.box(0, 0, columns, rows))
    if not inside.any():
        raise SourceError(
            f"{path}: none of its {len(polygons)} polygons is on {name}, {rows} x {columns}; expected coordinates in "
            f"pixels of level 0{_from(row, column)}. Use the outlines of this slide."
        )
    others += passed
    if outside := int((~inside).sum()):
        others[f"outside of {rows} x {columns} pixels"] = outside
    kept = [polygon for polygon, is_inside in zip(polygons, inside, strict=True) if is_inside]
    return Outlines(kept, _note(path, chosen, others, (row, column)))


def _from(row: int, column: int) -> str:
    return f", shifted by x {column} and y {row} from the scanned area" if row or column else ""


def _note(
    path: PathLike, chosen: list[_Outline], others: Mapping[str, int], origin: tuple[int, int]
) -> str:
    """Say in one line which outlines do not count, have no class, or were shifted; empty if there are none."""
    names = Counter(each.name for each in chosen)
    row, column = origin
    if not others and "" not in names and not (row or column):
        return ""
    count = ", ".join(f"{number} {_called(name)}" for name, number in sorted(names.items()))
    left = "".join(f", not {number} {what}" for what, number in others.items())
    return f"{path}: as outlines count {count}{left}{_from(row, column)}"


def _called(name: str) -> str:
    return f"of class {name}" if name else "without a class"


def _chosen(
    path: PathLike, found: list[_Outline], rule: OutlineRule
) -> tuple[list[_Outline], Counter[str]]:
    """Choose the outlines that count, and count the others by what they are.

    Raises:
        SourceError: There is none, or several classes could count.
    """
    wanted = {name.strip().casefold() for name in rule.classes}
    if not wanted:
        wanted = {_base(each.name) for each in found if each.name and not each.name.endswith("*")}
    if not rule.classes and len(wanted) > 1:
        raise SourceError(
            f"{path}: has outlines {_listed(found)}; expected those of one class.", Advice.CLASSES
        )
    wanted = (wanted or {""}) - {_IGNORED}
    counts = [_counts(each.name, wanted) for each in found]
    chosen = [each for each, does in zip(found, counts, strict=True) if does]
    if not chosen and found:
        expected = " or ".join(rule.classes) or "outlines of another class, or without one"
        raise SourceError(
            f"{path}: has outlines {_listed(found)}, none of which counts; expected {expected}. Correct their class, "
            "or leave the slide out."
        )
    if not chosen:
        raise SourceError(
            f"{path}: has no polygons; expected outlines. Draw at least one, and export it as GeoJSON."
        )
    left = Counter(_called(each.name) for each, does in zip(found, counts, strict=True) if not does)
    return chosen, left


def _counts(name: str, wanted: set[str]) -> bool:
    folded = name.casefold()
    return folded != _IGNORED and (folded in wanted or _base(name) in wanted)


def _base(name: str) -> str:
    """The class from which a class is derived, `tumor` of `Tumor: Positive`, in lower case."""
    return name.partition(":")[0].strip().casefold()


def _listed(found: list[_Outline]) -> str:
    names = Counter(_called(each.name) for each in found)
    return ", ".join(f"{name} ({number})" for name, number in sorted(names.items()))


def _read(path: Path) -> tuple[list[_Outline], Counter[str], str | None]:
    """Read all polygons with their classes, the numbers of features without one, and the origin that the file says.

    Raises:
        SourceError: The file is not GeoJSON.
    """
    found: list[_Outline] = []
    passed: Counter[str] = Counter()
    try:
        content = json.loads(_decompressed(path, path.read_bytes()))  # in any encoding of Unicode
        for feature in _features(content):
            shape = _shape(feature)
            polygons = [] if shape is None else list(_polygons(shape))
            if shape is None:
                passed["without a geometry"] += 1
            elif not polygons:
                passed["that are no polygons"] += 1
            found += [_Outline(_class_of(feature), polygon) for polygon in polygons]
        origin = content.get("origin") if isinstance(content, dict) else None
    except SourceError:
        raise
    except Exception as error:  # whatever the document holds
        raise SourceError(
            f"{path}: is not a GeoJSON file ({type(error).__name__}: {error}). Export the annotations again."
        ) from error
    return found, passed, origin if origin in ORIGINS else None


def _decompressed(path: Path, content: bytes) -> bytes:
    if content.startswith(_ZIP):
        raise SourceError(
            f"{path}: is a zip archive; expected GeoJSON, plain or compressed by gzip. Unpack it."
        )
    if not content.startswith(_GZIP):
        return content
    with gzip.GzipFile(fileobj=io.BytesIO(content)) as file:
        text = file.read(MOST_BYTES + 1)
    if len(text) > MOST_BYTES:
        raise SourceError(
            f"{path}: has more than {counted(MOST_BYTES, 'byte')} when it is decompressed; expected outlines of one "
            "slide. Export fewer."
        )
    return text


def _features(content: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the features or geometries of a FeatureCollection, a list of features, a feature, or a geometry."""
    if isinstance(content, dict) and "features" not in content:
        yield content
        return
    for each in content["features"] if isinstance(content, dict) else content:
        yield from _features(each)


def _shape(feature: Mapping[str, Any]) -> shapely.Geometry | None:
    """The geometry of a feature, or None if it has none."""
    geometry = feature.get("geometry", None if feature.get("type") == "Feature" else feature)
    if geometry is None:
        return None
    shape = shapely.from_geojson(json.dumps(geometry))
    return None if shape is None or shape.is_empty else shape


def _polygons(shape: shapely.Geometry) -> Iterator[shapely.Geometry]:
    """Yield the polygons of a geometry, without the rest; a multipolygon is one object."""
    if shape.geom_type == "GeometryCollection":
        for part in shapely.get_parts(shape):
            yield from _polygons(part)
    elif shape.geom_type in ("Polygon", "MultiPolygon"):
        yield shape


def _class_of(feature: Mapping[str, Any]) -> str:
    """The class that QuPath gave a feature, of its name or names; empty without one."""
    properties = feature.get("properties")
    found = properties.get("classification") if isinstance(properties, dict) else None
    if isinstance(found, dict):
        found = found.get("name") or found.get("names")
    names = found if isinstance(found, list) else [found]
    return ": ".join(each.strip() for each in names if isinstance(each, str) and each.strip())
