"""Images that are read by rows and never held whole.

A `Source` knows the shape `[H, W, C]` and the dtype of an image and gives any band of rows. `open`
makes one from a path or an array; `Source.crop`, `Grayscale`, `Padded`, `Scaled` and `Upsampled` change one
into another without reading it. A dataset carries a source's `handle`, a short string, and
whoever needs rows calls `resolve(handle).read(start, stop)`. A `Bag` is the same for instances
`[n, ...]`, of which any slice is read; `open_bag` makes one, `Patches` one of an image. A `Slide` is one image at
several sizes, with the size of its pixels; `open_slide` finds its reader, `Slide.at` gives the source of a resolution.
"""

from tfbig.sources.arrays import ArraySource, RawSource
from tfbig.sources.bags.augmentation import Augmentation, Augmented, AugmentedImage
from tfbig.sources.bags.bag import ArrayBag, Bag, Filled, Resized, Subset
from tfbig.sources.bags.bag_files import FeatureBag, NpyBag, PictureBag, open_bag
from tfbig.sources.bags.patches import Patches
from tfbig.sources.bags.tile_coords import Coords, read_coords, write_coords
from tfbig.sources.bags.tiles import Tiles
from tfbig.sources.handles import OnDisk, resolve
from tfbig.sources.resolution import Resolution, read_mpp_table
from tfbig.sources.slides.ome_tiff import write_ome_tiff
from tfbig.sources.slides.opening import SLIDE_SUFFIXES, open, open_slide
from tfbig.sources.slides.slide import Slide
from tfbig.sources.slides.tiff import TiffSource
from tfbig.sources.source import Readable, Source
from tfbig.sources.views import Channels, Grayscale, Padded, Scaled, Upsampled
from tfbig.sources.writing import NpyWriter, write_npy

__all__ = [
    "SLIDE_SUFFIXES",
    "ArrayBag",
    "ArraySource",
    "Augmentation",
    "Augmented",
    "AugmentedImage",
    "Bag",
    "Channels",
    "Coords",
    "FeatureBag",
    "Filled",
    "Grayscale",
    "NpyBag",
    "NpyWriter",
    "OnDisk",
    "Padded",
    "Patches",
    "PictureBag",
    "RawSource",
    "Readable",
    "Resized",
    "Resolution",
    "Scaled",
    "Slide",
    "Source",
    "Subset",
    "TiffSource",
    "Tiles",
    "Upsampled",
    "open",
    "open_bag",
    "open_slide",
    "read_coords",
    "read_mpp_table",
    "resolve",
    "write_coords",
    "write_npy",
    "write_ome_tiff",
]
