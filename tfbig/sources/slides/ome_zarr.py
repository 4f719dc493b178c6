"""OME-Zarr, written strip by strip: images, and labels of images."""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import numpy as np

from tfbig.errors import SourceError, reason_of
from tfbig.sources.files import Package, PathLike
from tfbig.sources.slides.ome_tiff import SMALLEST, Progress, halved
from tfbig.sources.source import RowArray, Source
from tfbig.system import output_folder
from tfbig.units import ceil_div, counted

zarr = Package("zarr")

CHUNK: Final = 512
SHARD: Final = 4096
"""Rows and columns of a shard; large images would have hundreds of thousands of chunks otherwise, each a file."""
FORMATS: Final = {"0.4": 2, "0.5": 3}
"""Versions of OME-Zarr that are written, and the version of zarr of each."""
LABELS: Final = "labels"
_COLOURS: Final = ("FFFFFF", "00FF00", "FF00FF", "00FFFF", "FFFF00", "FF0000", "0000FF")


def write_ome_zarr(
    path: PathLike,
    image: Source,
    *,
    channel_names: Sequence[str] | None = None,
    ome_version: str = "0.5",
    ticked: Progress | None = None,
) -> None:
    """Write an image as an OME-Zarr pyramid with axes c, y, x.

    Each level has half the rows and columns of the previous one, the mean of two by two pixels. Chunks that are all 0
    are not stored. The folder gets its name when it is complete.

    Args:
        path: The folder, `*.zarr`; it must not exist.
        image: Image `[H, W, C]`, read once. The pixel size is `image.mpp`, if known.
        channel_names: Names of the channels; by default their numbers.
        ome_version: "0.5", with sharded zarr 3 arrays, or "0.4", with zarr 2 arrays.
        ticked: Called with the number of strips that are written and the number of all strips.

    Raises:
        ValueError: The suffix or the version is not supported, or there is another number of names than of channels.
        SourceError: The folder exists, the zarr package is not installed, or the image cannot be read or written.

    Example:
        >>> image = tfbig.open(np.full((40, 30), 7, "uint16"))
        >>> image.mpp = (0.5, 0.5)
        >>> tfbig.sources.write_ome_zarr("cells.zarr", image, channel_names=["DAPI"])
        >>> slide = tfbig.open_slide("cells.zarr", channels=["DAPI"])
        >>> slide.shape, slide.mpp, int(slide.read((0, 1), (0, 1))[0, 0, 0])
        ((40, 30, 1), (0.5, 0.5), 7)
    """
    names = [str(n) for n in range(image.shape[2])] if channel_names is None else channel_names
    if len(names) != image.shape[2]:
        raise ValueError(
            f"{image.name}: received {len(names)} channel names, {list(names)}; expected {image.shape[2]}."
        )
    _check(path, ome_version)
    with _new_folder(Path(path)) as part:
        group = zarr.open_group(part, mode="w", zarr_format=FORMATS[ome_version])
        _write_levels(group, image, ome_version, "cyx", False, ticked)
        _describe(group, ome_version, _omero(names, image.dtype))


def write_ome_zarr_labels(
    path: PathLike,
    name: str,
    labels: Source,
    *,
    ome_version: str = "0.5",
    ticked: Progress | None = None,
) -> None:
    """Write numbers of classes or of instances as `labels/NAME` of an OME-Zarr image.

    The smaller levels have the upper left of two by two pixels. An image that does not exist is created without pixels:
    its labels are complete, and opened by their own path.

    Args:
        path: The folder of the image, `*.zarr`.
        name: Name of the labels. Existing ones are replaced when the new ones are complete.
        labels: Labels `[H, W, 1]` of an integer dtype, read once; of the size of level 0 of the image.
        ome_version: Version of a new image, as in `write_ome_zarr`; an existing one keeps its own.
        ticked: Called with the number of strips that are written and the number of all strips.

    Raises:
        ValueError: The suffix or the version is not supported, or the name is not one of a folder.
        SourceError: The labels are not integers or have several channels, the folder is not OME-Zarr, or it cannot be
            written to.

    Example:
        >>> labels = tfbig.open(np.eye(8, dtype="int32"))
        >>> tfbig.sources.write_ome_zarr_labels("labelled.zarr", "nuclei", labels)
        >>> tfbig.open_slide("labelled.zarr/labels/nuclei", reader="zarr").shape
        (8, 8, 1)
    """
    if not name or name.startswith(".") or Path(name).name != name:
        raise ValueError(
            f"{path}: received labels '{name}'; expected a name without '/', such as nuclei."
        )
    if labels.shape[2] != 1 or labels.dtype.kind not in "ui":
        raise SourceError(
            f"{labels.name}: has {counted(labels.shape[2], 'channel')} of {labels.dtype}; expected labels, one channel "
            "of integers."
        )
    root = Path(path)
    if not root.exists():
        _check(path, ome_version)
        zarr.open_group(root, mode="w", zarr_format=FORMATS[ome_version])
    image = _existing(root)
    if "ome" in image.attrs or "multiscales" in image.attrs:
        ome_version = "0.4" if image.metadata.zarr_format == 2 else "0.5"
    try:
        group = image.require_group(LABELS)
    except Exception as error:  # each store raises its own exceptions
        raise SourceError(
            f"{path}: cannot be written to ({error}). Check its permissions."
        ) from error
    if (root / LABELS / name).exists() and not _is_ours(root / LABELS / name):
        raise SourceError(
            f"{root / LABELS / name}: was not written by tfbig, and is not replaced. Use another name."
        )
    with _new_folder(root / LABELS / name, replace=True) as part:
        written = zarr.open_group(part, mode="w", zarr_format=image.metadata.zarr_format)
        _write_levels(written, labels, ome_version, "yx", True, ticked)
        about = {"source": {"image": "../../"}} | (
            {"version": "0.4"} if ome_version == "0.4" else {}
        )
        _describe(written, ome_version, {"image-label": about})
    known = group.attrs.get("ome", group.attrs).get(LABELS, [])
    _describe(group, ome_version, {LABELS: [*(each for each in known if each != name), name]})


def _is_ours(labels: Path) -> bool:
    """Tell whether labels say that tfbig wrote them."""
    try:
        attributes = zarr.open_group(labels, mode="r").attrs
        image = attributes.get("ome", attributes)["multiscales"][0]
        return str(image["metadata"]["Creator"]).startswith("tfbig ")
    except Exception:  # each store raises its own exceptions; and others write no creator
        return False


def _check(path: PathLike, ome_version: str) -> None:
    """Raise an error unless a new image can be written."""
    if Path(path).suffix.lower() != ".zarr" or ome_version not in FORMATS:
        raise ValueError(
            f"{path}: OME-Zarr {ome_version}; expected a name that ends in .zarr, and version {' or '.join(FORMATS)}."
        )
    if zarr.missing:
        raise SourceError(
            f"{path}: needs the zarr package ({zarr.missing}): pip install 'tfbig[zarr]'."
        )
    if os.path.exists(path):
        raise SourceError(f"{path}: exists already. Remove it, or choose another name.")


def _existing(root: Path) -> Any:
    """Open the group of a folder, to write to."""
    if zarr.missing:
        raise SourceError(
            f"{root}: needs the zarr package ({zarr.missing}): pip install 'tfbig[zarr]'."
        )
    try:
        return zarr.open_group(root, mode="r+")
    except Exception as error:  # each store raises its own exceptions
        raise SourceError(
            f"{root}: is not an OME-Zarr folder to which labels can be added ({type(error).__name__}: "
            f"{reason_of(error)})."
        ) from error


@contextmanager
def _new_folder(target: Path, replace: bool = False) -> Iterator[Path]:
    """Yield the path of a new folder next to `target`, which gets its name unless the block raises."""
    part = output_folder.part_of(target)
    shutil.rmtree(part, ignore_errors=True)
    try:
        yield part
        output_folder.record(target, is_folder=True)
        if replace:
            shutil.rmtree(target, ignore_errors=True)
        part.rename(target)
    except SourceError:
        raise
    except OSError as error:
        raise SourceError(f"{target}: cannot be written: {error}.") from error
    finally:
        with suppress(OSError):
            shutil.rmtree(part)


def _write_levels(
    group: Any,
    image: Source,
    ome_version: str,
    axes: str,
    labels: bool,
    ticked: Progress | None,
) -> None:
    """Write all levels of an image in one pass, and what they are."""
    count = max(math.ceil(math.log2(max(image.shape[:2]) / SMALLEST)), 0) + 1
    writers = [_Level(group, number, image, ome_version, axes, labels) for number in range(count)]
    height = SHARD if ome_version == "0.5" else CHUNK
    height = min(
        height, max(2**28 // max(image.nbytes // image.shape[0], 1) // CHUNK * CHUNK, CHUNK)
    )
    starts = range(0, image.shape[0], height)
    for number, start in enumerate(starts):
        rows = image.read(start, min(start + height, image.shape[0]))
        for writer, following in zip(writers, (*writers[1:], None), strict=True):
            writer.add(rows, number + 1 == len(starts))
            if following is not None:
                rows = halved(rows, labels)
        if ticked is not None:
            ticked(number + 1, len(starts))
    mpp = image.mpp
    unit = {} if mpp is None else {"unit": "micrometer"}
    kinds = {
        "c": {"type": "channel"},
        "y": {"type": "space", **unit},
        "x": {"type": "space", **unit},
    }
    datasets = []
    for number in range(count):
        sizes = {"c": 1.0, **dict(zip("yx", mpp or (1.0, 1.0), strict=True))}
        scale = [1.0 if axis == "c" else sizes[axis] * 2**number for axis in axes]
        transformations = [{"type": "scale", "scale": scale}]
        datasets.append({"path": str(number), "coordinateTransformations": transformations})
    multiscale: dict[str, Any] = {
        "name": image.name.rpartition("/")[2],
        "axes": [{"name": axis, **kinds[axis]} for axis in axes],
        "datasets": datasets,
        "metadata": {"Creator": f"tfbig {version('tfbig')}"},
    }
    if ome_version == "0.4":
        multiscale["version"] = "0.4"
    _describe(group, ome_version, {"multiscales": [multiscale]})


class _Level:
    """Writer of a level, which collects rows until they fill a row of shards or chunks.

    Args:
        group: Group of the image.
        number: The level.
        image: Level 0.
        ome_version: Version of OME-Zarr.
        axes: Letters of the axes.
        labels: Whether the pixels are labels, whose neighbours are often equal.
    """

    def __init__(
        self, group: Any, number: int, image: Source, ome_version: str, axes: str, labels: bool
    ) -> None:
        rows, columns = (ceil_div(n, 2**number) for n in image.shape[:2])
        sharded = ome_version == "0.5"
        side = min(SHARD, ceil_div(max(rows, columns), CHUNK) * CHUNK)
        sizes = {"c": image.shape[2], "y": rows, "x": columns}
        self._height = side if sharded else CHUNK
        compressor: dict[str, Any] = {"compressors": zarr.codecs.ZstdCodec(level=3)}
        if not sharded:
            import numcodecs

            compressor = {
                "compressors": numcodecs.Blosc("zstd", 5, numcodecs.Blosc.SHUFFLE),
                "chunk_key_encoding": {"name": "v2", "separator": "/"},
            }
        self._array = group.create_array(
            str(number),
            shape=[sizes[axis] for axis in axes],
            dtype=image.dtype,
            chunks=[1 if axis == "c" else CHUNK for axis in axes],
            shards=[1 if axis == "c" else side for axis in axes] if sharded else None,
            fill_value=0,
            **compressor,
            **({"dimension_names": list(axes)} if sharded else {}),
        )
        self._planes = "c" in axes
        self._waiting: list[RowArray] = []
        self._start = 0

    def add(self, rows: RowArray, last: bool) -> None:
        """Add rows `[r, W, C]`, the next below those before; the last ones end the level."""
        self._waiting.append(rows)
        count = sum(map(len, self._waiting))
        if count < self._height and not last:
            return
        held = np.concatenate(self._waiting) if len(self._waiting) > 1 else rows
        after = count if last else count // self._height * self._height
        part = held[:after]
        place = slice(self._start, self._start + after)
        if self._planes:
            for channel in range(part.shape[2]):
                self._array[channel, place] = part[..., channel]
        else:
            self._array[place] = part[..., 0]
        self._start += after
        self._waiting = [held[after:].copy()] if after < count else []


def _describe(group: Any, ome_version: str, metadata: dict[str, Any]) -> None:
    """Add metadata of OME-Zarr to the attributes of a group."""
    if ome_version == "0.4":
        group.attrs.update(metadata)
    else:
        group.attrs["ome"] = {**group.attrs.get("ome", {}), "version": ome_version, **metadata}


def _omero(names: Sequence[str], dtype: np.dtype[Any]) -> dict[str, Any]:
    """Return what viewers show: names, colours and ranges of the channels."""
    last = 1.0 if dtype.kind in "fb" else float(np.iinfo(dtype).max)
    colours = ("FF0000", "00FF00", "0000FF") if len(names) == 3 and dtype == np.uint8 else _COLOURS
    window = {"min": 0.0, "start": 0.0, "end": last, "max": last}
    channels = [
        {"label": name, "color": colours[n % len(colours)], "window": window, "active": True}
        for n, name in enumerate(names)
    ]
    return {"omero": {"channels": channels, "rdefs": {"model": "color"}}}
