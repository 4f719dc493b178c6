"""Cloud-optimised GeoTIFF, written block by block so that a process that was killed goes on where it was."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, Final, final

import numpy as np

from tfbig.errors import SourceError, TfbigError, reason_of
from tfbig.sources import untrusted
from tfbig.sources.files import Package, PathLike
from tfbig.sources.scenes.gdal import CACHE_BYTES, quiet
from tfbig.sources.scenes.grid import MapGrid
from tfbig.sources.scenes.mosaic import Band, Piece, write_vrt
from tfbig.sources.source import RowArray, Source
from tfbig.sources.writing import atomic_write, resumable_folder
from tfbig.system import output_folder

rasterio, rasterio_shutil = Package("rasterio"), Package("rasterio.shutil")

TILE: Final = 512
BLOCK_SIDE: Final = 4096
"""Rows and columns of a block, which is written at once."""

Rectangle = tuple[tuple[int, int], tuple[int, int]]
"""`(start, stop)` of the rows and of the columns."""


@dataclass(frozen=True)
class Format:
    """Shape, dtype, grid and bands of a GeoTIFF: everything but its pixels.

    Attributes:
        shape: `(rows, columns, bands)`.
        dtype: Dtype of a sample.
        grid: Grid of the pixels.
        nodata: Value that stands for no measurement, or None.
        names: Description of each band.
        labels: Whether the samples are class numbers, which overviews must not average.
        classes: Names of the classes by number, which are written as the tags `CLASS_0`, `CLASS_1`, ...
        colours: Red, green and blue of each class; written of one band of uint8 with a coordinate system.
    """

    shape: tuple[int, int, int]
    dtype: np.dtype[Any]
    grid: MapGrid
    nodata: float | None = None
    names: Sequence[str] = ()
    labels: bool = False
    classes: Sequence[str] = ()
    colours: Sequence[tuple[int, int, int]] = ()

    @property
    def tags(self) -> dict[str, str]:
        """Metadata of the file."""
        return {f"CLASS_{number}": name for number, name in enumerate(self.classes)}

    @property
    def has_palette(self) -> bool:
        """True if the file holds the colours of its classes.

        It does not without a coordinate system, because it would be read as a picture.
        """
        return self.shape[2] == 1 and self.dtype == np.uint8 and self.grid.wkt is not None


@final
class BlockWriter:
    """Writer of a cloud-optimised GeoTIFF, block by block, in any order and over several processes' lives.

    Each block is a file in the folder `.NAME.blocks` beside the file; `finish` joins them, adds overviews, gives the
    file its name and removes the folder. Blocks that were written for another `identity` are removed at the start.

    Args:
        path: The file to write.
        form: Shape, grid and nodata.
        identity: What the pixels depend on, such as the model and the scene; as JSON.
        side: Rows and columns of a block, a multiple of 512.

    Raises:
        SourceError: The folder cannot be written to.
    """

    def __init__(
        self, path: PathLike, form: Format, identity: Mapping[str, Any], side: int = BLOCK_SIDE
    ) -> None:
        self.path, self.form, self.side = Path(path), form, side
        known = {"tile": side, "form": repr(form), **identity}
        self.folder = resumable_folder(self.path.with_name(f".{self.path.name}.blocks"), known)

    @property
    def blocks(self) -> list[Rectangle]:
        """Rectangles of all blocks, row by row."""
        rows, columns = (_intervals(n, self.side) for n in self.form.shape[:2])
        return list(product(rows, columns))

    @property
    def missing(self) -> list[Rectangle]:
        """Rectangles of the blocks that are not written yet."""
        return [block for block in self.blocks if not self._file(block).exists()]

    def write(self, block: Rectangle, pixels: RowArray) -> None:
        """Write a block, `[rows, columns, bands]`; it counts as written only when it is complete.

        Raises:
            ValueError: The pixels have another shape or dtype.
            SourceError: The disk is full, or writing failed.
        """
        (top, bottom), (left, right) = block
        expected = (bottom - top, right - left, self.form.shape[2])
        if pixels.shape != expected or pixels.dtype != self.form.dtype:
            raise ValueError(
                f"{self.path}: received a block of {pixels.shape} {pixels.dtype}; expected {expected} "
                f"{self.form.dtype}."
            )
        options = self._options(expected, self.form.grid.window(top, left))
        with (
            _writing(self._file(block)),
            atomic_write(self._file(block)) as part,
            quiet(),
            rasterio.open(part, "w", driver="GTiff", **options) as file,
        ):
            file.write(pixels.transpose(2, 0, 1))

    def read(self, block: Rectangle) -> RowArray:
        """Read the pixels of a block that is written, `[rows, columns, bands]`."""
        name = self._file(block)
        with untrusted.reading(name), quiet(), rasterio.open(name, driver="GTiff") as file:
            return np.ascontiguousarray(file.read().transpose(1, 2, 0))

    def finish(self) -> None:
        """Join the blocks into the file, with overviews, and remove them.

        Raises:
            SourceError: A block is missing, the disk is full, or writing failed.
        """
        if missing := self.missing:
            raise SourceError(
                f"{self.path}: {len(missing)} of {len(self.blocks)} blocks are not written; expected all of them."
            )
        form, vrt, whole = self.form, self.folder / "all.vrt", self.folder / "all.tif"
        options = {
            "compress": "DEFLATE",
            "level": 6,
            "predictor": "NO" if form.labels else "YES",
            "blocksize": TILE,
            "resampling": "NEAREST" if form.labels else "AVERAGE",
            "bigtiff": "IF_SAFER",
            "num_threads": "ALL_CPUS",
            "sparse_ok": "YES",
        }
        with _writing(self.path):
            write_vrt(vrt, form.shape[:2], form.dtype, form.grid, self._bands(), tags=form.tags)
            with (
                rasterio.Env(GDAL_CACHEMAX=CACHE_BYTES, GDAL_TIFF_INTERNAL_MASK=True),
                quiet(),
            ):
                # in the folder of the blocks, so that nothing is left when the process is killed
                rasterio_shutil.copy(vrt, whole, driver="COG", **options)
            output_folder.record(self.path)
            whole.replace(self.path)
        shutil.rmtree(self.folder)

    def _bands(self) -> Iterator[Band]:
        for number in range(self.form.shape[2]):
            pieces = tuple(
                Piece(
                    self._file((rows, columns)),
                    number + 1,
                    (rows[1] - rows[0], columns[1] - columns[0]),
                    rows,
                    columns,
                )
                for rows, columns in self.blocks
            )
            name = self.form.names[number] if self.form.names else ""
            colours = self.form.colours if self.form.has_palette else ()
            yield Band(name, self.form.nodata, pieces, colours)

    def _file(self, block: Rectangle) -> Path:
        return self.folder / f"{block[0][0]}_{block[1][0]}.tif"

    def _options(self, shape: Sequence[int], grid: MapGrid) -> dict[str, Any]:
        """The options of rasterio for a block of a shape and grid."""
        place = {"crs": grid.crs, "transform": grid.transform} if self.form.grid.is_placed else {}
        return place | {
            "height": shape[0],
            "width": shape[1],
            "count": shape[2],
            "dtype": self.form.dtype,
            "nodata": self.form.nodata,
            "tiled": True,
            "blockxsize": TILE,
            "blockysize": TILE,
            "interleave": "band",
            "compress": "deflate",
            "zlevel": 1,
            "sparse_ok": "true",
        }


def write_cog(
    path: PathLike,
    image: Source,
    grid: MapGrid,
    *,
    nodata: float | None = None,
    names: Sequence[str] = (),
    labels: bool = False,
) -> None:
    """Write an image as cloud-optimised GeoTIFF, with overviews.

    Args:
        path: The file, `*.tif`.
        image: Image `[H, W, bands]`, read block by block.
        grid: Grid of the pixels.
        nodata: Value that stands for no measurement.
        names: Description of each band.
        labels: Whether the samples are class numbers, which overviews must not average.

    Raises:
        SourceError: The image cannot be read, or the file cannot be written.

    Example:
        >>> grid = tfbig.sources.MapGrid(None, (10.0, 0.0, 5e5, 0.0, -10.0, 6e6))
        >>> mask = tfbig.open(np.eye(600, dtype="uint8"))
        >>> tfbig.sources.write_cog("mask.tif", mask, grid, nodata=255, names=["class"], labels=True)
        >>> tfbig.sources.RasterSource("mask.tif").levels
        ((600, 600), (300, 300))
    """
    rows, columns, bands = image.shape
    form = Format((rows, columns, bands), image.dtype, grid, nodata, tuple(names), labels)
    writer = BlockWriter(path, form, {"image": image.name})
    for block in writer.blocks:
        writer.write(block, image.read_window(*block))
    writer.finish()


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Turn every exception of GDAL and the system into a SourceError that names the file."""
    try:
        yield
    except TfbigError:
        raise
    except Exception as error:  # those of GDAL have no common class that is public
        raise SourceError(f"{path}: cannot be written: {reason_of(error)}.") from error


def _intervals(extent: int, side: int) -> list[tuple[int, int]]:
    return [(start, min(start + side, extent)) for start in range(0, extent, side)]
