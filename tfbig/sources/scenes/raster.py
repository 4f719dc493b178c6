"""Scenes in GeoTIFF, JPEG 2000 and VRT files, read by windows with GDAL."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

import numpy as np
import numpy.typing as npt
import rasterio
from rasterio.enums import ColorInterp, MaskFlags, Resampling
from rasterio.errors import NotGeoreferencedWarning, RasterioError
from rasterio.vrt import WarpedVRT
from rasterio.windows import Window

from tfbig.errors import SourceError
from tfbig.sources.files import File, PathLike
from tfbig.sources.resolution import Resolution
from tfbig.sources.scenes.grid import MapGrid
from tfbig.sources.slides.slide import Slide
from tfbig.sources.source import RowArray, Source
from tfbig.units import counted

DRIVERS: Final = {
    **dict.fromkeys((".tif", ".tiff", ".btf", ".tf8"), "GTiff"),
    ".jp2": "JP2OpenJPEG",
    ".vrt": "VRT",
}
"""Drivers of GDAL by suffix; no other driver ever opens a file."""
CACHE_BYTES: Final = 2**28
"""Least size of GDAL's cache of decoded blocks, for all files; more where two rows of blocks take more."""
_MAX_CACHE_BYTES: Final = 2**30
_OUTSIDE: Final = ("/vsi", "://")
"""Beginnings and parts of names by which a VRT file would read from a network or an archive."""


@dataclass(frozen=True)
class Bands:
    """Nodata values, names and mask of the bands of a file.

    Attributes:
        nodata: Value that stands for no measurement, of each band; None if there is none.
        names: Description of each band; "" if there is none.
        is_masked: Whether the file has a mask or an alpha band.
        has_alpha: Whether it has an alpha band.
        shown: Positions of the bands that the file marks as red, green and blue; none if it does not mark all three.
    """

    nodata: tuple[float | None, ...]
    names: tuple[str, ...]
    is_masked: bool
    has_alpha: bool = False
    shown: tuple[int, ...] = ()


@final
class RasterSource(Source):
    """A level of a scene, `[H, W, bands]`, read by windows with GDAL; alpha is no band.

    Args:
        path: GeoTIFF, COG, JPEG 2000 or VRT file.
        level: 0 is full resolution, n is overview n.
        onto: Grid, and rows and columns, to resample the file to as it is read, by the nearest pixel. What it does not
            cover is no measurement.

    Attributes:
        grid: Grid of the pixels.
        bands: What the file says about its bands.
        levels: Rows and columns of each level.
        files: Paths of all files that are read; a VRT file names others.

    Raises:
        SourceError: The file does not exist, is damaged, has another format, or holds several images.

    Example:
        >>> grid = tfbig.sources.MapGrid(None, (10.0, 0.0, 5e5, 0.0, -10.0, 6e6))
        >>> image = tfbig.open(np.arange(24, dtype="uint16").reshape(2, 4, 3))
        >>> tfbig.sources.write_cog("scene.tif", image, grid, nodata=0, names=["red", "green", "nir"])
        >>> scene = tfbig.sources.RasterSource("scene.tif")
        >>> scene.read_window((1, 2), (3, 4)).tolist(), scene.bands.names
        ([[[21, 22, 23]]], ('red', 'green', 'nir'))
    """

    def __init__(
        self, path: PathLike, level: int = 0, onto: tuple[MapGrid, tuple[int, int]] | None = None
    ) -> None:
        self._dataset = _open(path, level)
        if onto is not None:
            self._dataset = _warped(self._dataset, *onto)
        dataset, self._lock = self._dataset, threading.Lock()
        colours = dataset.colorinterp
        self._indexes = [n for n in dataset.indexes if colours[n - 1] != ColorInterp.alpha]
        chosen = [n - 1 for n in self._indexes]
        dtypes = {dataset.dtypes[n] for n in chosen}
        if len(dtypes) != 1:
            raise SourceError(
                f"{path}: its bands have the dtypes {', '.join(sorted(dtypes))}; expected one. Convert the bands."
            )
        _check_axes(path, dataset)
        shape = (dataset.height, dataset.width, len(chosen))
        super().__init__(shape, dtypes.pop(), str(path))
        flags = dataset.mask_flag_enums[chosen[0]]
        masked = MaskFlags.per_dataset in flags and MaskFlags.nodata not in flags
        self.files = tuple(dataset.files)
        self.grid = MapGrid.of(dataset.crs, dataset.transform)
        self.bands = Bands(
            tuple(dataset.nodatavals[n] for n in chosen),
            tuple(dataset.descriptions[n] or "" for n in chosen),
            masked,
            len(chosen) < dataset.count,
            _marked([colours[n] for n in chosen]),
        )
        overviews = dataset.overviews(self._indexes[0]) if level == 0 else []
        self.levels = ((shape[0], shape[1]), *(_reduced(shape, n) for n in overviews))
        rows, columns = dataset.block_shapes[0]
        across = -(-shape[1] // columns) * columns
        self._cache = min(2 * rows * across * shape[2] * self.dtype.itemsize, _MAX_CACHE_BYTES)

    def close(self) -> None:
        """Close the file; reading then raises SourceError."""
        with self._lock:
            self._dataset.close()

    def _read(self, start: int, stop: int) -> RowArray:
        return self._read_window(start, stop, 0, self.shape[1])

    def _read_window(self, start: int, stop: int, left: int, right: int) -> RowArray:
        planes = self._call("read", self._indexes, (start, stop, left, right))
        return np.ascontiguousarray(planes.transpose(1, 2, 0), self.dtype)

    def valid(
        self, rows: tuple[int, int], columns: tuple[int, int], pixels: RowArray
    ) -> npt.NDArray[np.bool_]:
        """Return which pixels of a window have a measurement in any band, `[rows, columns]`.

        Args:
            rows: `(start, stop)`.
            columns: `(start, stop)`.
            pixels: The pixels of this window.
        """
        measured: npt.NDArray[np.bool_] = np.asarray(self.measured(pixels).any(-1))
        if self.bands.is_masked:
            mask: npt.NDArray[np.uint8] = self._call(
                "read_masks", self._indexes[0], (*rows, *columns)
            )
            measured = measured & np.asarray(mask != 0)
        return measured

    def measured(self, pixels: RowArray) -> npt.NDArray[np.bool_]:
        """Return which samples are measurements: neither nodata nor, of floats, NaN or infinite.

        Args:
            pixels: `[..., bands]`.
        """
        measured = np.ones(pixels.shape, bool)
        for band, nodata in enumerate(self.bands.nodata):
            if nodata is not None:
                measured[..., band] = pixels[..., band] != nodata
        return measured & np.isfinite(pixels) if self.dtype.kind == "f" else measured

    def reduced(self, max_side: int) -> tuple[RowArray, npt.NDArray[np.bool_]]:
        """Return the whole scene in few pixels, each the nearest one, and which have a measurement.

        Overviews are used if the file has any.

        Args:
            max_side: Most rows and columns.

        Returns:
            Arrays `[rows, columns, bands]` and `[rows, columns]`.
        """
        factor = max(max(self.shape[:2]) / max_side, 1.0)
        shape = tuple(max(round(n / factor), 1) for n in self.shape[:2])
        whole = (0, self.shape[0], 0, self.shape[1])
        planes = self._call("read", self._indexes, whole, out_shape=(self.shape[2], *shape))
        pixels = np.ascontiguousarray(planes.transpose(1, 2, 0), self.dtype)
        known: npt.NDArray[np.bool_] = np.asarray(self.measured(pixels).any(-1))
        if self.bands.is_masked:
            mask = self._call("read_masks", self._indexes[0], whole, out_shape=shape)
            known = known & np.asarray(mask != 0)
        return pixels, known

    @property
    def knows_nodata(self) -> bool:
        """Return whether any pixel may lack a measurement."""
        known = self.bands.is_masked or any(n is not None for n in self.bands.nodata)
        return known or self.dtype.kind == "f"

    def _call(
        self, method: str, indexes: Any, window: tuple[int, int, int, int], **options: Any
    ) -> Any:
        """Return what a method of the dataset returns for a window; one thread at a time, as GDAL demands."""
        start, stop, left, right = window
        with self._lock:
            if self._dataset.closed:
                raise SourceError(
                    f"{self.name}: was closed. Open the source again to read from it."
                )
            try:
                with rasterio.Env(GDAL_CACHEMAX=max(CACHE_BYTES, self._cache)):
                    part = Window(left, start, right - left, stop - start)
                    return getattr(self._dataset, method)(indexes, window=part, **options)
            except RasterioError as error:
                raise SourceError(
                    f"{self.name}: rows {start}:{stop} from column {left} cannot be read ({_reason(error)}). The file "
                    "is damaged or truncated there; copy it again."
                ) from error


@final
class RasterSlide(Slide):
    """A scene with its overviews as levels.

    Args:
        path: GeoTIFF, COG, JPEG 2000 or VRT file.

    Attributes:
        scene: Level 0.
    """

    def __init__(self, path: PathLike) -> None:
        self.scene = RasterSource(path)
        _rows, _columns, bands = self.scene.shape
        super().__init__(
            str(path), self.scene.levels, bands, self.scene.dtype, Resolution(), "rasterio"
        )

    def _open(self, level: int) -> Source:
        return self.scene if level == 0 else RasterSource(self.name, level)

    def describe(self) -> str:
        """Return one line with the size, bands, coordinate system and levels."""
        rows, columns, bands = self.shape
        levels = ", ".join(f"{n:.4g}" for n in self.downsamples)
        samples = f"{counted(bands, 'band')} of {self.dtype}"
        where = self.scene.grid.describe()
        return f"{self.name}: {rows} x {columns}, {samples}, {where}, levels {levels}, by rasterio"


@contextmanager
def quiet() -> Iterator[None]:
    """Ignore the warning of rasterio that an image has no coordinates, which pictures have not."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotGeoreferencedWarning)
        yield


def _open(path: PathLike, level: int) -> Any:
    """Return the dataset of a file, opened by the driver of its suffix."""
    File(path)  # raises if it does not exist
    driver = DRIVERS.get(Path(path).suffix.lower())
    if driver is None:
        raise SourceError(
            f"{path}: is not read as a scene; expected one of {', '.join(sorted(DRIVERS))}. Convert it to GeoTIFF."
        )
    if driver == "VRT":
        _check_vrt(Path(path))
    options = {"overview_level": level - 1} if level else {}
    try:
        with quiet(), rasterio.Env(GDAL_CACHEMAX=CACHE_BYTES):
            dataset = rasterio.open(Path(path), driver=driver, **options)
    except RasterioError as error:
        raise SourceError(
            f"{path}: cannot be read as {driver} ({_reason(error)}). Check that it is one and was copied completely."
        ) from error
    if dataset.count == 0 or len(dataset.subdatasets) > 1:
        raise SourceError(
            f"{path}: holds {counted(len(dataset.subdatasets), 'image')} instead of one with all bands, as files of "
            "arrays in the order [bands, rows, columns] do. Write one image with a band for each."
        )
    return dataset


def _marked(colours: Sequence[ColorInterp]) -> tuple[int, ...]:
    """Return the positions of the bands that are marked as red, green and blue, or none."""
    wanted = (ColorInterp.red, ColorInterp.green, ColorInterp.blue)
    return tuple(map(colours.index, wanted)) if {*wanted} <= {*colours} else ()


def _warped(dataset: Any, grid: MapGrid, shape: tuple[int, int]) -> Any:
    """Return a dataset resampled to another grid."""
    masked = dataset.nodata is None and MaskFlags.all_valid in dataset.mask_flag_enums[0]
    return WarpedVRT(
        dataset,
        crs=grid.crs,
        transform=grid.transform,
        height=shape[0],
        width=shape[1],
        resampling=Resampling.nearest,
        add_alpha=masked,
    )


def _check_vrt(path: Path) -> None:
    """Raise SourceError for a VRT file that would read from elsewhere than the file system."""
    text = path.read_text(errors="replace")
    if any(part in text.partition("<VRTRasterBand")[2] for part in _OUTSIDE):
        raise SourceError(
            f"{path}: refers to a network or an archive ({' or '.join(_OUTSIDE)}); expected files. Copy the files, and "
            "write the VRT again."
        )


def _check_axes(path: PathLike, dataset: Any) -> None:
    """Raise SourceError where bands and an axis of the image seem to be exchanged."""
    if dataset.count > max(16, min(dataset.height, dataset.width)):
        raise SourceError(
            f"{path}: has {counted(dataset.count, 'band')} of {dataset.height} x {dataset.width} pixels, as if its "
            "axes were in another order. Write it as [rows, columns, bands], or by rasterio as [bands, rows, columns]."
        )


def _reduced(shape: tuple[int, ...], factor: int) -> tuple[int, int]:
    return -(-shape[0] // factor), -(-shape[1] // factor)


def _reason(error: Exception) -> str:
    """Return the first cause of an error of GDAL in one line."""
    while error.__cause__ is not None and isinstance(error.__cause__, Exception):
        error = error.__cause__
    return " ".join(str(error).split())
