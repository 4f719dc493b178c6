"""Scenes in GeoTIFF, JPEG 2000 and VRT files, read by windows with GDAL."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, final

import numpy as np
import numpy.typing as npt

from tfbig.errors import SourceError
from tfbig.sources import untrusted
from tfbig.sources.files import Package, PathLike
from tfbig.sources.resolution import Resolution
from tfbig.sources.scenes import gdal
from tfbig.sources.scenes.grid import MapGrid
from tfbig.sources.slides.slide import Slide
from tfbig.sources.source import RowArray, Source
from tfbig.units import ceil_div, counted

rasterio, enums = Package("rasterio"), Package("rasterio.enums")

_MAX_CACHE_BYTES: Final = 2**30
UNSCALED: Final = (1.0, 0.0)
Onto = tuple[MapGrid, tuple[int, int]] | None
"""A grid, and rows and columns on it."""


@dataclass(frozen=True)
class Bands:
    """Nodata values, names and mask of the bands of a file.

    Attributes:
        nodata: Value that stands for no measurement, of each band; None if there is none.
        names: Description of each band; "" if there is none.
        is_masked: Whether the file has a mask or an alpha band.
        has_alpha: Whether it has an alpha band.
        shown: Positions of the bands that the file marks as red, green and blue; none if it does not mark all three.
        scaling: Scale and offset of each band: a value is `scale * stored + offset`.
    """

    nodata: tuple[float | None, ...]
    names: tuple[str, ...]
    is_masked: bool
    has_alpha: bool = False
    shown: tuple[int, ...] = ()
    scaling: tuple[tuple[float, float], ...] = ()

    @property
    def is_scaled(self) -> bool:
        """True if values differ from what is stored."""
        return any(pair != UNSCALED for pair in self.scaling)


@final
class RasterSource(Source):
    """A level of a scene, `[H, W, bands]`, read by windows with GDAL; alpha is no band.

    Where the file gives a band a scale or an offset, as reflectance has, both are applied: values are float32, and
    those without a measurement are NaN.

    Args:
        path: GeoTIFF, COG, JPEG 2000 or VRT file.
        level: 0 is full resolution, n is overview n.
        onto: Grid, and rows and columns, to resample the file to as it is read, by the nearest pixel. What it does not
            cover is no measurement.

    Attributes:
        grid: Grid of the pixels.
        bands: What the file says about its bands.
        levels: Rows and columns of each level.
        stored: Dtype of the samples in the file.
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

    def __init__(self, path: PathLike, level: int = 0, onto: Onto = None) -> None:
        dataset, self.files = gdal.open_raster(path, level)
        self._dataset, self._lock = dataset, threading.Lock()
        with untrusted.reading(path):
            self._describe(path, dataset, level, onto)

    def _describe(self, path: PathLike, dataset: Any, level: int, onto: Onto) -> None:
        """Take the shape, grid, bands and levels from the dataset, or from it resampled to another grid."""
        _check_images(path, dataset)
        gdal.check_block(path, dataset, self.files)
        scaling = _scaling(path, dataset, level)
        if onto is not None:
            dataset = self._dataset = _warped(path, dataset, *onto)
        colours = dataset.colorinterp
        self._indexes = [n for n in dataset.indexes if colours[n - 1] != enums.ColorInterp.alpha]
        chosen = [n - 1 for n in self._indexes]
        dtypes = {dataset.dtypes[n] for n in chosen}
        if len(dtypes) != 1:
            raise SourceError(
                f"{path}: its bands have the dtypes {', '.join(sorted(dtypes))}; expected one. Convert the bands."
            )
        _check_axes(path, dataset)
        shape = (dataset.height, dataset.width, len(chosen))
        self.stored = _dtype(path, dtypes.pop())
        own = tuple(scaling[n] for n in chosen)
        is_scaled = _check_scaling(path, own)
        Source.__init__(self, shape, np.dtype(np.float32) if is_scaled else self.stored, str(path))
        flags = dataset.mask_flag_enums[chosen[0]]
        masked = enums.MaskFlags.per_dataset in flags and enums.MaskFlags.nodata not in flags
        self.grid = MapGrid.of(dataset.crs, dataset.transform)
        self.bands = Bands(
            tuple(dataset.nodatavals[n] for n in chosen),
            tuple(dataset.descriptions[n] or "" for n in chosen),
            masked,
            len(chosen) < dataset.count,
            _marked([colours[n] for n in chosen]),
            own,
        )
        overviews = dataset.overviews(self._indexes[0]) if level == 0 else []
        self.levels = ((shape[0], shape[1]), *(_reduced(shape, n) for n in overviews))
        rows, columns = dataset.block_shapes[0]
        across = ceil_div(shape[1], columns) * columns
        self._cache = min(2 * rows * across * shape[2] * self.dtype.itemsize, _MAX_CACHE_BYTES)

    def close(self) -> None:
        """Close the file; reading then raises SourceError."""
        with self._lock:
            self._dataset.close()

    def _read_window(self, start: int, stop: int, left: int, right: int) -> RowArray:
        planes = self._call("read", self._indexes, (start, stop, left, right))
        return self._values(planes)

    def _values(self, planes: RowArray) -> RowArray:
        """Convert stored samples `[bands, rows, columns]` to values `[rows, columns, bands]`."""
        if not self.bands.is_scaled:
            return np.ascontiguousarray(planes.transpose(1, 2, 0), self.dtype)
        out = np.empty((*planes.shape[1:], self.shape[2]), self.dtype)
        for n, (scale, offset) in enumerate(self.bands.scaling):
            out[..., n] = planes[n] * scale + offset
            nodata = self.bands.nodata[n]
            if nodata is not None:
                out[planes[n] == nodata, n] = np.nan
        return out

    def valid(
        self, rows: tuple[int, int], columns: tuple[int, int], pixels: RowArray
    ) -> npt.NDArray[np.bool_]:
        """Find the pixels of a window that have a measurement in any band, `[rows, columns]`.

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
        """Find the samples that are measurements: neither nodata nor, of floats, NaN or infinite.

        Args:
            pixels: `[..., bands]`.
        """
        measured = np.ones(pixels.shape, bool)
        for band, nodata in enumerate(self.bands.nodata):
            if nodata is not None and not self.bands.is_scaled:
                measured[..., band] = pixels[..., band] != nodata
        return measured & np.isfinite(pixels) if self.dtype.kind == "f" else measured

    def reduced(self, max_side: int) -> tuple[RowArray, npt.NDArray[np.bool_]]:
        """Read the whole scene in few pixels, each the nearest one, and find those with a measurement.

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
        pixels = self._values(planes)
        known: npt.NDArray[np.bool_] = np.asarray(self.measured(pixels).any(-1))
        if self.bands.is_masked:
            mask = self._call("read_masks", self._indexes[0], whole, out_shape=shape)
            known = known & np.asarray(mask != 0)
        return pixels, known

    @property
    def knows_nodata(self) -> bool:
        """True if any pixel may lack a measurement."""
        known = self.bands.is_masked or any(n is not None for n in self.bands.nodata)
        return known or self.dtype.kind == "f"

    def _call(
        self, method: str, indexes: Any, window: tuple[int, int, int, int], **options: Any
    ) -> Any:
        """Call a method of the dataset for a window; one thread at a time, as GDAL demands."""
        start, stop, left, right = window
        with self._lock:
            if self._dataset.closed:
                raise SourceError(
                    f"{self.name}: was closed. Open the source again to read from it."
                )
            what = f"rows {start}:{stop} from column {left} cannot be read"
            with (
                untrusted.reading(self.name, what),
                rasterio.Env(GDAL_CACHEMAX=max(gdal.CACHE_BYTES, self._cache)),
            ):
                part = rasterio.windows.Window(left, start, right - left, stop - start)
                return getattr(self._dataset, method)(indexes, window=part, **options)


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
        if level == 0:
            return self.scene
        source = RasterSource(self.name, level)
        shape = (*self.levels[level], self.shape[2])
        if source.shape != shape or source.dtype != self.dtype:
            raise SourceError(
                f"{self.name}: its overview {level} is {source.shape} {source.dtype}; expected {shape} {self.dtype}, "
                "as of the image. Write the overviews again, as by gdaladdo."
            )
        return source

    def describe(self) -> str:
        """Describe the size, bands, coordinate system and levels in one line."""
        rows, columns, bands = self.shape
        levels = ", ".join(f"{n:.4g}" for n in self.downsamples)
        samples = f"{counted(bands, 'band')} of {self.dtype}"
        where = self.scene.grid.describe()
        return f"{self.name}: {rows} x {columns}, {samples}, {where}, levels {levels}, by rasterio"


def _check_images(path: PathLike, dataset: Any) -> None:
    """Raise SourceError where a file holds no image, or several."""
    if dataset.count == 0 or len(dataset.subdatasets) > 1:
        raise SourceError(
            f"{path}: holds {counted(len(dataset.subdatasets), 'image')} instead of one with all bands, as files of "
            "arrays in the order [bands, rows, columns] do. Write one image with a band for each."
        )


def _dtype(path: PathLike, name: str) -> np.dtype[Any]:
    """The dtype of a name of rasterio."""
    try:
        dtype = np.dtype(name)
    except TypeError:
        dtype = np.dtype(object)
    if dtype.kind not in "uif":
        raise SourceError(
            f"{path}: its samples are {name}; expected integers or floats. Convert the bands."
        )
    return dtype


def _scaling(path: PathLike, dataset: Any, level: int) -> tuple[tuple[float, float], ...]:
    """Read scale and offset of each band, which GDAL tells of level 0 only."""
    if level:
        dataset, _ = gdal.open_raster(path, 0)
    pairs = zip(map(float, dataset.scales), map(float, dataset.offsets), strict=True)
    try:
        return tuple(pairs)
    finally:
        if level:
            dataset.close()


def _check_scaling(path: PathLike, scaling: Sequence[tuple[float, float]]) -> bool:
    """Tell whether a band has a scale or an offset; raise SourceError where one is no number to multiply by."""
    for band, (scale, offset) in enumerate(scaling, start=1):
        if not (np.isfinite([scale, offset]).all() and scale):
            raise SourceError(
                f"{path}: band {band} has the scale {scale:g} and the offset {offset:g}; expected finite numbers and a "
                "scale that is not 0. Write them again."
            )
    return any(pair != UNSCALED for pair in scaling)


def _marked(colours: Sequence[Any]) -> tuple[int, ...]:
    """The positions of the bands that are marked as red, green and blue, or none."""
    wanted = (enums.ColorInterp.red, enums.ColorInterp.green, enums.ColorInterp.blue)
    return tuple(map(colours.index, wanted)) if {*wanted} <= {*colours} else ()


def _warped(path: PathLike, dataset: Any, grid: MapGrid, shape: tuple[int, int]) -> Any:
    """Resample a dataset, which has a place, to another grid."""
    # Without a place, GDAL would look for it in other files.
    if dataset.transform == rasterio.Affine.identity():
        raise SourceError(
            f"{path}: has no place on the map, so it cannot be resampled. Write its transform to it."
        )
    masked = dataset.nodata is None and enums.MaskFlags.all_valid in dataset.mask_flag_enums[0]
    return rasterio.vrt.WarpedVRT(
        dataset,
        crs=grid.crs,
        transform=grid.transform,
        height=shape[0],
        width=shape[1],
        resampling=enums.Resampling.nearest,
        add_alpha=masked,
    )


def _check_axes(path: PathLike, dataset: Any) -> None:
    """Raise SourceError where bands and an axis of the image seem to be exchanged."""
    if dataset.count > max(16, min(dataset.height, dataset.width)):
        raise SourceError(
            f"{path}: has {counted(dataset.count, 'band')} of {dataset.height} x {dataset.width} pixels, as if its "
            "axes were in another order. Write it as [rows, columns, bands], or by rasterio as [bands, rows, columns]."
        )


def _reduced(shape: tuple[int, ...], factor: int) -> tuple[int, int]:
    return ceil_div(shape[0], factor), ceil_div(shape[1], factor)
