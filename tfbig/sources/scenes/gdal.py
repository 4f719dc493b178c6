"""What GDAL opens: files of this machine that are checked with all that they lead to, never anything on a network.

When this module is imported, GDAL loses its connections to networks and its drivers of servers in the whole process,
and in the processes that it starts.
"""

from __future__ import annotations

import os
import warnings
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import numpy as np

from tfbig.errors import SourceError, reason_of
from tfbig.sources import trial, untrusted
from tfbig.sources.files import Package, PathLike
from tfbig.sources.scenes import vrt

rasterio = Package("rasterio")

DRIVERS: Final = {
    **dict.fromkeys((".tif", ".tiff", ".btf", ".tf8"), "GTiff"),
    ".jp2": "JP2OpenJPEG",
    ".vrt": "VRT",
}
"""Drivers of GDAL by suffix; no other driver ever opens a file."""
CACHE_BYTES: Final = 2**28
"""Least size of GDAL's cache of decoded blocks, for all files; more where two rows of blocks take more."""
MOST_VRTS: Final = 8
"""Largest number of VRT files, each of which names the next."""

SERVERS: Final = (
    *("HTTP", "WMS", "WCS", "WMTS", "STACIT", "STACTA", "EEDA", "EEDAI", "PLMOSAIC", "PLSCENES", "DAAS", "OGCAPI"),
    *("NGW", "WFS", "OAPIF", "CSW", "Elasticsearch", "Carto", "AmigoCloud", "GDALG", "GPSBabel", "ADBC"),
)  # fmt: skip
"""Drivers that read from servers, or run programs."""
_NO_PROXY: Final = "off://0"
"""Proxy of a kind that does not exist, so that nothing connects to it."""
_ENVIRONMENT: Final = {
    "CPL_VSIL_CURL_ALLOWED_FILENAME": "none",
    "GDAL_HTTP_PROXY": _NO_PROXY,
    "GDAL_HTTPS_PROXY": _NO_PROXY,
    "GDAL_VRT_ENABLE_PYTHON": "NO",
    "OGR_SQLITE_ALLOW_EXTERNAL_ACCESS": "NO",
}
os.environ.update(_ENVIRONMENT)
os.environ["GDAL_SKIP"] = ",".join(filter(None, (os.environ.get("GDAL_SKIP"), *SERVERS)))

_SIGNATURES: Final = {
    **dict.fromkeys((b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"), "GTiff"),
    **dict.fromkeys((b"\0\0\0\x0cjP  ", b"\xffO\xffQ"), "JP2OpenJPEG"),
}
"""First bytes of files by driver."""
_IMAGES: Final = (".ovr", ".msk")
"""Endings that overviews and masks have after the name of their image."""
_NOTES: Final = (
    ".aux.xml",
    ".tfw",
    ".tifw",
    ".tiffw",
    ".j2w",
    ".jp2w",
    ".wld",
    ".tab",
    ".rpb",
    ".imd",
    "_rpc.txt",
)
"""Endings of texts about an image, after its name with or without its suffix."""  # fmt: skip
_LEADING: Final = ("OVERVIEWS", "ProxyOverviewRequest")
"""Domains of metadata in which a file names others."""


@contextmanager
def quiet() -> Iterator[None]:
    """Ignore the warning of rasterio that an image has no coordinates, which pictures have not."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", rasterio.errors.NotGeoreferencedWarning)
        yield


def open_raster(path: PathLike, level: int = 0) -> tuple[Any, tuple[str, ...]]:
    """Open a file by the driver of its suffix, and name all files that it is read from.

    `level` 0 is full resolution, n is overview n.

    Raises:
        SourceError: The file, or one that it leads to, does not exist, is damaged, has another format, or is of a kind
            that may read from anywhere; or GDAL ends its process on it.
    """
    driver = DRIVERS.get(Path(path).suffix.lower())
    if driver is None:
        untrusted.regular_file(path)
        raise SourceError(
            f"{path}: is not read as a scene; expected one of {', '.join(sorted(DRIVERS))}. Convert it to GeoTIFF."
        )
    checked = _Checked()
    if driver == "VRT":
        name = checked.vrt(Path(path))
        trial.check("raster", path, name)
    else:
        name = os.path.abspath(path)
        checked.image(Path(path), driver)
    options = {"overview_level": level - 1} if level else {}
    return _opened(path, name, driver, **options), tuple(checked.files)


def _opened(path: PathLike, name: str, driver: str, **options: Any) -> Any:
    """Open a checked file, or text of a VRT file."""
    with untrusted.reading(path, f"cannot be read as {driver}"), quiet():
        try:
            with rasterio.Env(GDAL_CACHEMAX=CACHE_BYTES):
                return rasterio.open(name, driver=driver, **options)
        except rasterio.errors.RasterioError as error:
            reason = first_reason(error).replace(name, str(path))
            raise SourceError(
                f"{path}: cannot be read as {driver} ({reason_of(reason)}). Check that it is one and was "
                "copied completely."
            ) from error


def first_reason(error: BaseException) -> str:
    """Find the first cause of an error of GDAL."""
    while error.__cause__ is not None:
        error = error.__cause__
    return str(error)


def check_block(path: PathLike, dataset: Any, files: Iterable[PathLike]) -> None:
    """Raise SourceError if a block of a dataset takes far more memory than the files have bytes that it is read from.

    GDAL decodes a whole block to read a pixel of it. `path` is for the error.
    """
    pixels = max((rows * columns for rows, columns in dataset.block_shapes), default=0)
    bands = dataset.count if dataset.interleaving == rasterio.enums.Interleaving.pixel else 1
    stored = sum(untrusted.regular_file(file).st_size for file in files)
    untrusted.check_size(
        path, pixels * bands * _bytes_of(dataset.dtypes), "a block of its pixels", stored
    )


def _bytes_of(dtypes: Iterable[str]) -> int:
    """The bytes of the largest sample; rasterio has names that NumPy has not, as complex_int16."""
    return max(
        (np.dtype(name).itemsize if name in np.sctypeDict else 16 for name in dtypes), default=1
    )


class _Checked:
    """Checks files, each once.

    Attributes:
        files: Name, length and time of the last change of each file, by its name.
    """

    def __init__(self) -> None:
        self.files: dict[str, tuple[str, int, int]] = {}
        self._sources: dict[Path, tuple[str, tuple[int, int] | None]] = {}
        self._names: dict[str, list[tuple[str, str]]] = {}
        self._depth = 0

    def vrt(self, path: Path) -> str:
        """Rewrite a VRT file as text, and check all its sources."""
        if self._depth == MOST_VRTS:
            raise SourceError(
                f"{path}: is a VRT that others show, more than {MOST_VRTS} deep or in a circle. Correct its sources."
            )
        mask = path.with_name(path.name + ".msk")
        if mask.exists():
            raise SourceError(
                f"{mask}: is a mask of a VRT file, which is not read. Name it in the VRT, as MaskBand."
            )
        self._add(path)
        self._depth += 1
        text = vrt.rewritten(path, self._source)
        self._depth -= 1
        return text

    def image(self, path: Path, driver: str) -> tuple[int, int]:
        """Check an image and the files beside it that belong to it, and return its rows and columns."""
        before = len(self.files)
        self._add(path)
        for beside in self._beside(path):
            self._companion(path, beside)
        return _size(os.path.abspath(path), driver, tuple(self.files.values())[before:])

    def _add(self, path: Path) -> None:
        status = untrusted.regular_file(path)
        self.files[str(path)] = str(path), status.st_size, status.st_mtime_ns

    def _source(self, path: Path) -> tuple[str, tuple[int, int] | None]:
        """Name a source of a VRT file for GDAL, and give its rows and columns if it is no VRT itself."""
        if path not in self._sources:
            driver = _driver_of(path)
            if driver == "VRT":
                self._sources[path] = self.vrt(path), None
            else:
                self._sources[path] = str(path), self.image(path, driver)
        return self._sources[path]

    def _beside(self, path: Path) -> Iterator[Path]:
        """Yield the files in the folder of an image whose names begin as its own, in any case of letters."""
        folder, stem = os.path.dirname(os.path.abspath(path)), path.stem.lower()
        if folder not in self._names:
            with untrusted.reading(path):
                self._names[folder] = sorted((name.lower(), name) for name in os.listdir(folder))
        names = self._names[folder]
        for n in range(bisect_left(names, (stem, "")), len(names)):
            lower, name = names[n]
            if not lower.startswith(stem):
                return
            if name != path.name and lower[len(stem) :].startswith((".", "_")):
                yield Path(folder, name)

    def _companion(self, path: Path, beside: Path) -> None:
        """Check a file beside an image, if GDAL reads it with the image."""
        if beside.is_dir():
            return
        name, whole = beside.name.lower(), path.name.lower()
        if name in [whole + ending for ending in _IMAGES]:
            driver = _driver_of(beside)
            if driver != "GTiff":
                raise SourceError(
                    f"{beside}: is no GeoTIFF, as overviews and masks must be. Remove it."
                )
            self.image(beside, driver)
        elif name in (whole + ".aux", path.stem.lower() + ".aux"):
            if _start(beside).startswith(b"EHFA"):
                raise SourceError(
                    f"{beside}: is a file of ERDAS, which is not read beside an image. Remove it."
                )
        elif any(name in (whole + ending, path.stem.lower() + ending) for ending in _NOTES):
            self._add(beside)


@lru_cache(maxsize=2**16)
def _size(name: str, driver: str, files: tuple[tuple[str, int, int], ...]) -> tuple[int, int]:
    """The rows and columns of an image that names no other; it is opened once, and again when it has changed."""
    with _opened(name, name, driver) as dataset, untrusted.reading(name):
        if any(dataset.tags(ns=domain) for domain in _LEADING):
            raise SourceError(
                f"{name}: its metadata name another file with overviews, which is not read. Write it again with "
                "gdal_translate."
            )
        check_block(name, dataset, [file for file, _, _ in files])
        return dataset.height, dataset.width


def _driver_of(path: Path) -> str:
    """Find the driver of a file by its first bytes."""
    start = _start(path)
    for signature, driver in _SIGNATURES.items():
        if start.startswith(signature):
            return driver
    if start.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"<"):
        return "VRT"
    raise SourceError(
        f"{path}: is neither GeoTIFF, JPEG 2000 nor VRT, by its first bytes. Convert it to GeoTIFF."
    )


def _start(path: Path) -> bytes:
    untrusted.regular_file(path)
    with untrusted.reading(path), open(path, "rb") as file:
        return file.read(64)
