"""Small images and TIFF files for tests of sources and slides."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import tifffile
from samples import FILES, ROOT

from tfbig.sources import Source

SMALL_SVS = FILES / "CMU-1-Small-Region.svs"
OME_TIFF = FILES / "OS-1-detail.ome.tif"
NDPI = FILES / "test3-DAPI-2-387_fluorescence.ndpi"
PANCREAS = ROOT / "examples" / "data" / "pancreas_pdac_1.tif"


def image(*shape: int, dtype: str = "uint8", seed: int = 0) -> np.ndarray:
    """An image with a smooth part, which JPEG keeps, and noise."""
    rows, columns = np.ogrid[: shape[0], : shape[1]]
    smooth = (rows * 3 + columns * 2).reshape(shape[0], shape[1], *[1] * (len(shape) - 2))
    noise = np.random.default_rng(seed).integers(0, 40, shape)
    scale = 1 if dtype == "uint8" else 250
    return ((smooth % 200 + noise) * scale).astype(dtype)


def noise(*shape: int) -> np.ndarray:
    """Uniform noise of uint8, so that all positions differ."""
    return np.random.default_rng(0).integers(0, 256, shape, np.uint8)


# Odd sizes on purpose: 67 and 101 are not multiples of any tile.
TIFFS: dict[str, tuple[np.ndarray, dict[str, Any]]] = {
    "plain_rgb": (image(67, 101, 3), {"photometric": "rgb"}),
    "plain_gray": (image(67, 101), {}),
    "plain_uint16_big_endian": (image(67, 101, dtype="uint16"), {"byteorder": ">"}),
    "plain_rgba": (image(67, 101, 4), {"photometric": "rgb", "rowsperstrip": 5}),
    "plain_tiles": (image(67, 101, 3), {"photometric": "rgb", "tile": (16, 32)}),
    "plain_planes": (image(3, 67, 101), {"photometric": "rgb", "planarconfig": "separate"}),
    "one_row_strips": (
        image(67, 101, 3),
        {"photometric": "rgb", "rowsperstrip": 1, "compression": "deflate"},
    ),
    "lzw_predictor": (
        image(67, 101, 3),
        {"photometric": "rgb", "rowsperstrip": 7, "compression": "lzw", "predictor": True},
    ),
    "one_strip": (image(67, 101), {"compression": "deflate", "rowsperstrip": 1000}),
    "deflate_tiles": (
        image(67, 101, 3),
        {"photometric": "rgb", "tile": (16, 32), "compression": "deflate"},
    ),
    "uint16_tiles": (
        image(67, 101, dtype="uint16"),
        {"tile": (32, 16), "compression": "zstd", "predictor": True},
    ),
    "uint16_big_endian_tiles": (
        image(67, 101, 3, dtype="uint16"),
        {"photometric": "rgb", "tile": (16, 16), "compression": "deflate", "byteorder": ">"},
    ),
    "rgba_tiles": (
        image(67, 101, 4),
        {"photometric": "rgb", "tile": (16, 32), "compression": "deflate"},
    ),
    "rgba_planes": (
        image(4, 67, 101),
        {
            "photometric": "rgb",
            "planarconfig": "separate",
            "tile": (16, 32),
            "compression": "deflate",
        },
    ),
    "float_tiles": (image(67, 101, dtype="float32"), {"tile": (16, 16), "compression": "deflate"}),
    "jpeg_tiles": (
        image(67, 101, 3),
        {"photometric": "rgb", "tile": (16, 32), "compression": "jpeg"},
    ),
    "jpeg_tiles_420": (
        image(67, 101, 3),
        {"photometric": "rgb", "tile": (32, 32), "compression": "jpeg", "subsampling": (2, 2)},
    ),
    "jpeg_strips": (
        image(67, 101, 3),
        {"photometric": "rgb", "rowsperstrip": 16, "compression": "jpeg"},
    ),
    "jpeg_gray": (image(67, 101), {"tile": (16, 16), "compression": "jpeg"}),
    "jpeg2000_tiles": (
        image(67, 101, 3),
        {"photometric": "rgb", "tile": (32, 32), "compression": "jpeg2000"},
    ),
    "bigtiff": (
        image(67, 101, 3),
        {"photometric": "rgb", "tile": (16, 32), "compression": "jpeg", "bigtiff": True},
    ),
}


def write_pyramid(path: Path, **options: Any) -> np.ndarray:
    """Write a TIFF file of three levels, 400 x 300 and smaller, and return level 0."""
    base = noise(400, 300, 3)
    with tifffile.TiffWriter(path) as writer:
        for step in (1, 2, 4):
            part = np.ascontiguousarray(base[::step, ::step])
            level_options = {"subfiletype": 1} if step > 1 else options
            writer.write(part, photometric="rgb", tile=(64, 64), **level_options)
    return base


def read_with_tifffile(path: Path, **options: Any) -> np.ndarray:
    """The image as tifffile reads it, `[H, W, C]` without alpha."""
    array = tifffile.imread(path, **options)
    if array.ndim == 2:
        return array[..., None]
    if array.shape[0] in (3, 4):
        array = np.moveaxis(array, 0, -1)
    return array[..., :3]


def read_all(source: Source) -> np.ndarray:
    """All rows of a source."""
    return source.read(0, source.shape[0])


def num_open(folder: Path) -> int:
    """Number of files in `folder` that this process has open (Linux)."""
    links = (Path("/proc/self/fd") / name for name in os.listdir("/proc/self/fd"))
    return sum(str(folder) in os.readlink(link) for link in links if link.is_symlink())
