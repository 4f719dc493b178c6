"""Program of `tfbig.sources.trial`: opens files whose names it reads as lines of JSON.

It answers with a line of JSON for each: what is wrong with the file, or an empty string.
"""

from __future__ import annotations

import json
import resource
import sys
from contextlib import suppress
from typing import Any

MOST_BYTES = 2**32
NO_FILTER = ("can't open directory", "plugin", "not registered")
"""Words of errors of HDF5 about a filter that is not installed."""


def open_hdf5(name: str) -> str:
    """Read all attributes, and the first and the last row of all datasets.

    Where a file is damaged, HDF5 raises an error but may also write to memory that it has freed: the other process must
    not open such a file. Attributes of types that NumPy does not have, and filters that are not installed, are no
    damage.
    """
    import h5py

    def read(_: str, item: Any) -> None:
        with suppress(TypeError):
            dict(item.attrs)
        if isinstance(item, h5py.Dataset) and item.ndim and item.shape[0]:
            for row in (0, item.shape[0] - 1):
                try:
                    item[row]
                except TypeError:
                    continue
                except OSError as error:
                    if not any(words in str(error) for words in NO_FILTER):
                        raise

    try:
        with h5py.File(name, "r") as file:
            read("/", file)
            file.visititems(read)
    except Exception as error:
        return f"is not a readable HDF5 file: {error}"
    return ""


def open_slide(name: str) -> str:
    """Decode three pixels of each level; errors are left to the other process."""
    import openslide

    with suppress(Exception), openslide.OpenSlide(name) as slide:
        columns, rows = slide.dimensions
        for level in range(slide.level_count):
            for share in (0, 0.5, 1):
                corner = int((columns - 1) * share), int((rows - 1) * share)
                slide.read_region(corner, level, (1, 1))
    return ""


def open_raster(name: str) -> str:
    """Decode three pixels of each level of an image; errors are left to the other process.

    Args:
        name: Path of the image, or the text of a VRT file.
    """
    import rasterio
    from rasterio.windows import Window

    options = {"driver": "VRT"} if name.startswith("<") else {}
    with suppress(Exception), rasterio.Env(GDAL_CACHEMAX=2**26):
        with rasterio.open(name, **options) as image:
            levels = len(image.overviews(1))
        for level in (None, *range(levels)):
            chosen = {} if level is None else {"overview_level": level}
            with rasterio.open(name, **options, **chosen) as image:
                for share in (0, 0.5, 1):
                    left, top = (int((n - 1) * share) for n in (image.width, image.height))
                    window = Window(left, top, 1, 1)
                    image.read(window=window)
                    image.read_masks(1, window=window)
    return ""


def open_zarr(name: str) -> str:
    """Decode the first and the last sample of an array, and so its first and last chunk; errors are left over."""
    import zarr

    with suppress(Exception):
        array = zarr.open_array(name, mode="r")
        for place in (0, -1):
            array[(place,) * array.ndim]
    return ""


def main() -> None:
    """Limit the memory, and open files until there are no more names."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(ValueError, OSError):  # a lower limit, or a system without this one
        resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
    functions = {
        "hdf5": open_hdf5,
        "openslide": open_slide,
        "raster": open_raster,
        "zarr": open_zarr,
    }
    for line in sys.stdin:
        kind, name = json.loads(line)
        print(json.dumps(functions[kind](name)), flush=True)


if __name__ == "__main__":
    main()
