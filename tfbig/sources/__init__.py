"""Images and bags that are read in parts and never held whole.

A `Source` is an image `[H, W, C]` that is read by bands of rows or rectangles; `open` returns one for a path or an
array. `Source.crop`, `Grayscale`, `RGB`, `Masked`, `Padded`, `Scaled`, `StainNormalised` and `Upsampled` transform a
source as it is read. A `Slide` is a pyramid of images with the size of their pixels; `open_slide` chooses its reader,
and `Slide.at` returns the source of one resolution. A `Volume` is a source `[D, H, W, C]` with the place of its voxels.
A `Bag` has instances `[n, ...]`, read by slices; `open_bag` returns one, and `Patches` and `Tiles` are bags of an
image.

Satellite scenes: `RasterSource` reads GeoTIFF, JPEG 2000 and VRT files with their `MapGrid`, `stack_bands` shows
files of single bands as one scene, `write_cog` writes cloud-optimised GeoTIFF.

A dataset refers to a source by its `handle`, a short string: `resolve(handle).read(start, stop)` returns rows.
"""

from tfbig.sources.arrays import ArraySource, PackedMask, RawSource
from tfbig.sources.augmentation import Augmentation, Augmented, AugmentedEach, AugmentedImage
from tfbig.sources.bags.bag import ArrayBag, Bag, Filled, Resized, Subset
from tfbig.sources.bags.bag_files import FeatureBag, NpyBag, PictureBag, open_bag
from tfbig.sources.bags.patches import Patches
from tfbig.sources.bags.tile_coords import Coords, read_coords, write_coords
from tfbig.sources.bags.tiles import Tiles
from tfbig.sources.handles import OnDisk, VolumeOnDisk, resolve
from tfbig.sources.intensity import Rescaled, percentiles
from tfbig.sources.masked import Masked
from tfbig.sources.resolution import Resolution, read_mpp_table
from tfbig.sources.scenes.cog import write_cog
from tfbig.sources.scenes.grid import MapGrid
from tfbig.sources.scenes.mosaic import stack_bands
from tfbig.sources.scenes.raster import RasterSource
from tfbig.sources.slides.ome_tiff import write_ome_tiff
from tfbig.sources.slides.ome_zarr import write_ome_zarr, write_ome_zarr_labels
from tfbig.sources.slides.opening import LABELS, SLIDE_SUFFIXES, open, open_labels, open_slide
from tfbig.sources.slides.slide import Slide
from tfbig.sources.slides.tiff import TiffSource
from tfbig.sources.source import Readable, Source
from tfbig.sources.stain import Macenko, Reinhard, StainNormalised
from tfbig.sources.views import RGB, CenterCropped, Channels, Grayscale, Padded, Scaled, Upsampled
from tfbig.sources.volumes.grid import VoxelGrid
from tfbig.sources.volumes.nifti_writing import write_nifti
from tfbig.sources.volumes.opening import VOLUME_SUFFIXES, open_volume
from tfbig.sources.volumes.raw import ArrayVolume
from tfbig.sources.volumes.views import Resampled, at_spacing
from tfbig.sources.volumes.volume import Turned, Volume
from tfbig.sources.writing import NpyWriter, write_npy

__all__ = [
    "LABELS",
    "RGB",
    "SLIDE_SUFFIXES",
    "VOLUME_SUFFIXES",
    "ArrayBag",
    "ArraySource",
    "ArrayVolume",
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
    "MapGrid",
    "Masked",
    "NpyBag",
    "NpyWriter",
    "OnDisk",
    "PackedMask",
    "Padded",
    "Patches",
    "PictureBag",
    "RasterSource",
    "RawSource",
    "Readable",
    "Reinhard",
    "Resampled",
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
    "Turned",
    "Upsampled",
    "Volume",
    "VolumeOnDisk",
    "VoxelGrid",
    "at_spacing",
    "open",
    "open_bag",
    "open_labels",
    "open_slide",
    "open_volume",
    "percentiles",
    "read_coords",
    "read_mpp_table",
    "resolve",
    "stack_bands",
    "write_cog",
    "write_coords",
    "write_nifti",
    "write_npy",
    "write_ome_tiff",
    "write_ome_zarr",
    "write_ome_zarr_labels",
]
