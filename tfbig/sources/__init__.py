"""Images and bags that are read in parts and never held whole.

A `Source` is an image `[H, W, C]` that is read by bands of rows or rectangles; `open` returns one for a path or an
array. `Source.crop`, `Grayscale`, `RGB`, `Masked`, `Padded`, `Scaled`, `StainNormalised` and `Upsampled` transform a
source as it is read. A `Slide` is a pyramid of images with the size of their pixels; `open_slide` chooses its reader,
and `Slide.at` returns the source of one resolution. A `Bag` has instances `[n, ...]`, read by slices; `open_bag`
returns one, and `Patches` and `Tiles` are bags of an image.

A dataset refers to a source by its `handle`, a short string: `resolve(handle).read(start, stop)` returns rows.
"""

from tfbig.sources.arrays import ArraySource, RawSource
from tfbig.sources.augmentation import Augmentation, Augmented, AugmentedEach, AugmentedImage
from tfbig.sources.bags.bag import ArrayBag, Bag, Filled, Resized, Subset
from tfbig.sources.bags.bag_files import FeatureBag, NpyBag, PictureBag, open_bag
from tfbig.sources.bags.patches import Patches
from tfbig.sources.bags.tile_coords import Coords, read_coords, write_coords
from tfbig.sources.bags.tiles import Tiles
from tfbig.sources.handles import OnDisk, resolve
from tfbig.sources.intensity import Rescaled, percentiles
from tfbig.sources.masked import Masked
from tfbig.sources.resolution import Resolution, read_mpp_table
from tfbig.sources.slides.ome_tiff import write_ome_tiff
from tfbig.sources.slides.ome_zarr import write_ome_zarr, write_ome_zarr_labels
from tfbig.sources.slides.opening import SLIDE_SUFFIXES, open, open_slide
from tfbig.sources.slides.slide import Slide
from tfbig.sources.slides.tiff import TiffSource
from tfbig.sources.source import Readable, Source
from tfbig.sources.stain import Macenko, Reinhard, StainNormalised
from tfbig.sources.views import RGB, CenterCropped, Channels, Grayscale, Padded, Scaled, Upsampled
from tfbig.sources.writing import NpyWriter, write_npy

__all__ = [
    "RGB",
    "SLIDE_SUFFIXES",
    "ArrayBag",
    "ArraySource",
    "Augmentation",
    "Augmented",
    "AugmentedEach",
    "AugmentedImage",
    "Bag",
    "CenterCropped",
    "Channels",
    "Coords",
    "FeatureBag",
    "Filled",
    "Grayscale",
    "Macenko",
    "Masked",
    "NpyBag",
    "NpyWriter",
    "OnDisk",
    "Padded",
    "Patches",
    "PictureBag",
    "RawSource",
    "Readable",
    "Reinhard",
    "Rescaled",
    "Resized",
    "Resolution",
    "Scaled",
    "Slide",
    "Source",
    "StainNormalised",
    "Subset",
    "TiffSource",
    "Tiles",
    "Upsampled",
    "open",
    "open_bag",
    "open_slide",
    "percentiles",
    "read_coords",
    "read_mpp_table",
    "resolve",
    "write_coords",
    "write_npy",
    "write_ome_tiff",
    "write_ome_zarr",
    "write_ome_zarr_labels",
]
