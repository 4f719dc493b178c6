"""Images that are read by rows and never held whole.

A `Source` knows the shape `[H, W, C]` and the dtype of an image and gives any band of rows. `open`
makes one from a path or an array; `Source.crop`, `Grayscale`, `Padded` and `Upsampled` change one
into another without reading it. A dataset carries a source's `handle`, a short string, and
whoever needs rows calls `resolve(handle).read(start, stop)`.
"""

from tfbig.sources.arrays import ArraySource, RawSource
from tfbig.sources.handles import resolve
from tfbig.sources.opening import open
from tfbig.sources.source import Source
from tfbig.sources.tiff import TiffSource
from tfbig.sources.views import Grayscale, Padded, Upsampled
from tfbig.sources.writing import NpyWriter, write_npy

__all__ = [
    "ArraySource",
    "Grayscale",
    "NpyWriter",
    "Padded",
    "RawSource",
    "Source",
    "TiffSource",
    "Upsampled",
    "open",
    "resolve",
    "write_npy",
]
