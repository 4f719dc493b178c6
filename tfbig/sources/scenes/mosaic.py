"""VRT files: bands of several files as one scene, and blocks of an image as one image."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from xml.etree import ElementTree

import numpy as np

from tfbig.errors import SourceError
from tfbig.sources.files import PathLike
from tfbig.sources.names import title_of
from tfbig.sources.scenes.grid import MapGrid
from tfbig.sources.scenes.raster import UNSCALED, RasterSource
from tfbig.sources.writing import atomic_write

_TYPES: Final = {
    "uint8": "Byte",
    "int8": "Int8",
    "uint16": "UInt16",
    "int16": "Int16",
    "uint32": "UInt32",
    "int32": "Int32",
    "float32": "Float32",
    "float64": "Float64",
}
"""GDAL's names of dtypes."""
RESAMPLINGS: Final = ("nearest", "bilinear", "cubic", "average")


@dataclass(frozen=True)
class Piece:
    """A rectangle of an image that a file holds.

    Attributes:
        path: The file.
        band: Band of the file, from 1.
        size: Rows and columns of the file.
        rows: First row of the image, and the one after the last, that the file covers.
        columns: The same of the columns.
    """

    path: Path
    band: int
    size: tuple[int, int]
    rows: tuple[int, int]
    columns: tuple[int, int]


@dataclass(frozen=True)
class Band:
    """A band of a VRT file.

    Attributes:
        name: Description.
        nodata: Value that stands for no measurement, or None.
        pieces: Files that the band is read from.
        colours: Red, green and blue of the values 0, 1, ..., or none.
        scaling: Scale and offset of stored samples.
    """

    name: str
    nodata: float | None
    pieces: tuple[Piece, ...]
    colours: Sequence[tuple[int, int, int]] = ()
    scaling: tuple[float, float] = UNSCALED


def stack_bands(path: PathLike, files: Sequence[PathLike], resampling: str = "nearest") -> None:
    """Write a VRT file that shows the bands of several files as one scene, as Sentinel-2 and Landsat are distributed.

    The scene has the pixels of the finest file; coarser files are resampled as they are read. No pixel is copied, and
    the VRT file names the others relative to its own folder.

    Args:
        path: The file to write, `*.vrt`.
        files: GeoTIFF or JPEG 2000 files of the same area, in the order of the bands.
        resampling: "nearest", "bilinear", "cubic" or "average", for coarser files.

    Raises:
        SourceError: A file cannot be read, or is of another area, coordinate system or dtype.
        ValueError: The suffix or the resampling is unknown, or there are no files.

    Example:
        >>> import rasterio
        >>> for name in ("B02", "B03"):
        ...     with rasterio.open(f"{name}.tif", "w", driver="GTiff", height=4, width=6, count=1, dtype="uint16",
        ...             crs="EPSG:32632", transform=(10, 0, 5e5, 0, -10, 6e6)) as file:
        ...         file.write(np.full((1, 4, 6), int(name[1:]), "uint16"))
        >>> tfbig.sources.stack_bands("scene.vrt", ["B02.tif", "B03.tif"])
        >>> tfbig.open("scene.vrt").read(0, 1)[0, 0].tolist()
        [2, 3]
    """
    target = Path(path)
    if target.suffix.lower() != ".vrt" or resampling not in RESAMPLINGS or not files:
        raise ValueError(
            f"{path}: received {len(files)} files and resampling '{resampling}'; expected a path *.vrt, at least one "
            f"file, and one of {', '.join(RESAMPLINGS)}."
        )
    scenes = [RasterSource(file) for file in files]
    try:
        finest = max(scenes, key=lambda scene: math.prod(scene.shape[:2]))
        for scene in scenes:
            _check_same_area(scene, finest)
        bands = [
            _whole(scene, number, finest.shape)
            for scene in scenes
            for number in range(scene.shape[2])
        ]
        write_vrt(target, finest.shape[:2], finest.stored, finest.grid, bands, resampling)
    finally:
        for scene in scenes:
            scene.close()


def write_vrt(
    path: Path,
    shape: Sequence[int],
    dtype: np.dtype[Any],
    grid: MapGrid,
    bands: Iterable[Band],
    resampling: str = "nearest",
    tags: Mapping[str, str] | None = None,
) -> None:
    """Write a VRT file of bands of one dtype; `resampling` is for pieces whose pixels have another size.

    `shape` is rows and columns; `tags` are metadata by name.
    """
    root = ElementTree.Element("VRTDataset", rasterXSize=str(shape[1]), rasterYSize=str(shape[0]))
    if grid.wkt is not None:
        ElementTree.SubElement(root, "SRS", dataAxisToSRSAxisMapping="1,2").text = grid.wkt
    if grid.is_placed:
        numbers = ", ".join(map(repr, grid.transform.to_gdal()))
        ElementTree.SubElement(root, "GeoTransform").text = numbers
    if tags:
        metadata = ElementTree.SubElement(root, "Metadata")
        for key, text in tags.items():
            ElementTree.SubElement(metadata, "MDI", key=key).text = text
    for number, band in enumerate(bands, start=1):
        element = ElementTree.SubElement(
            root, "VRTRasterBand", dataType=_TYPES[dtype.name], band=str(number)
        )
        if band.name:
            ElementTree.SubElement(element, "Description").text = band.name
        if band.nodata is not None:
            ElementTree.SubElement(element, "NoDataValue").text = repr(float(band.nodata))
        if band.scaling != UNSCALED:
            for key, value in zip(("Scale", "Offset"), band.scaling, strict=True):
                ElementTree.SubElement(element, key).text = repr(value)
        _add_colours(element, band.colours)
        for piece in band.pieces:
            _add_piece(element, path.parent, piece, resampling)
    with atomic_write(path) as part:
        ElementTree.ElementTree(root).write(part, encoding="utf-8")


def _add_colours(element: Any, colours: Sequence[tuple[int, int, int]]) -> None:
    """Add a colour table to a band, if there are colours."""
    if not colours:
        return
    ElementTree.SubElement(element, "ColorInterp").text = "Palette"
    table = ElementTree.SubElement(element, "ColorTable")
    for red, green, blue in colours:
        ElementTree.SubElement(table, "Entry", c1=str(red), c2=str(green), c3=str(blue), c4="255")


def _add_piece(element: Any, folder: Path, piece: Piece, resampling: str) -> None:
    source = ElementTree.SubElement(element, "SimpleSource", resampling=resampling)
    inside = piece.path.absolute().is_relative_to(folder.absolute())
    name = piece.path.absolute().relative_to(folder.absolute()) if inside else piece.path.absolute()
    file = ElementTree.SubElement(source, "SourceFilename", relativeToVRT=str(int(inside)))
    file.text = str(name)
    ElementTree.SubElement(source, "SourceBand").text = str(piece.band)
    (rows, columns), (top, bottom), (left, right) = piece.size, piece.rows, piece.columns
    ElementTree.SubElement(
        source, "SrcRect", xOff="0", yOff="0", xSize=str(columns), ySize=str(rows)
    )
    ElementTree.SubElement(
        source,
        "DstRect",
        xOff=str(left),
        yOff=str(top),
        xSize=str(right - left),
        ySize=str(bottom - top),
    )


def _whole(scene: RasterSource, number: int, shape: Sequence[int]) -> Band:
    """The band of a VRT file that one band of a scene fills."""
    name = scene.bands.names[number] or title_of(scene.name)
    size = scene.shape[0], scene.shape[1]
    piece = Piece(Path(scene.name), number + 1, size, (0, shape[0]), (0, shape[1]))
    bands = scene.bands
    return Band(name, bands.nodata[number], (piece,), scaling=bands.scaling[number])


def _check_same_area(scene: RasterSource, other: RasterSource) -> None:
    """Raise SourceError if two scenes differ in area, coordinate system or dtype, or have one that VRT has not."""
    if scene.stored.name not in _TYPES:
        raise SourceError(
            f"{scene.name}: has dtype {scene.stored}; expected one of {', '.join(_TYPES)}. Convert it."
        )
    rows, columns = (n / m for n, m in zip(other.shape[:2], scene.shape[:2], strict=True))
    if scene.stored != other.stored:
        raise SourceError(
            f"{scene.name}: has dtype {scene.stored}, but {other.name} has {other.stored}; expected one. Convert it."
        )
    if not other.grid.scaled(rows, columns).equals(scene.grid, (scene.shape[0], scene.shape[1])):
        raise SourceError(
            f"{scene.name}: covers another area than {other.name} ({scene.grid.describe()} and "
            f"{other.grid.describe()}); expected the bands of one scene. Warp it to the same area first."
        )
