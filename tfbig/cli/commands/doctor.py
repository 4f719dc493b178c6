"""Says what there is: versions, devices, memory, readers, and the line that installs what is missing."""

import importlib.metadata
import json
import os
import platform
import shutil
from pathlib import Path

import tensorflow as tf

from tfbig.sources.slides import openslide, zarr
from tfbig.system.budget import available_bytes
from tfbig.units import format_bytes

NEEDED = (
    *("tensorflow", "keras", "numpy", "tifffile", "imagecodecs", "openslide-python"),
    *("openslide-bin", "h5py", "scikit-image", "scipy", "shapely", "matplotlib", "tqdm"),
)
OPTIONAL = {"zarr": "pip install 'tfbig[zarr]'", "tensorboard": "pip install 'tfbig[log]'"}
FORMATS = {
    "tifffile": "TIFF, OME-TIFF, GeoTIFF, SVS",
    "openslide": "NDPI, MRXS, SCN, BIF, Philips, CZI, DICOM",
    "zarr": "zarr, OME-Zarr",
}


def add_flags(add):
    """Flags of this command."""
    add("--json", action="store_true", help="print one JSON object")


def run(settings):
    """Prints what was found; 1 if something that is needed is missing."""
    found = examined()
    print(json.dumps(found, indent=2) if settings.json else "\n".join(_lines(found)))
    return 1 if found["missing"] else 0


def examined():
    """What there is, as `--json` prints it."""
    versions = {name: _version(name) for name in (*NEEDED, *OPTIONAL)}
    codecs = versions["tifffile"] and versions["imagecodecs"]
    readers = {"tifffile": bool(codecs), "openslide": openslide.openslide is not None}
    missing = {name: f"pip install {name}" for name in NEEDED if versions[name] is None}
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "packages": versions,
        "accelerators": [device.name for device in tf.config.list_physical_devices("GPU")],
        "cores": os.cpu_count(),
        "memory_available_bytes": available_bytes(),
        "disk_free_bytes": shutil.disk_usage(Path.cwd()).free,
        "readers": readers | {"zarr": zarr.zarr is not None},
        "missing": missing,
        "optional": {name: line for name, line in OPTIONAL.items() if versions[name] is None},
    }


def _version(name):
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _lines(found):
    yield f"python {found['python']} on {found['system']}, {found['cores']} cores"
    devices = (
        ", ".join(found["accelerators"]) or "none that TensorFlow sees; everything runs on the CPU"
    )
    yield f"accelerators: {devices}"
    memory, disk = (
        format_bytes(found[f"{key}_bytes"]) for key in ("memory_available", "disk_free")
    )
    yield f"memory available {memory}, disk free here {disk}"
    for name, version in found["packages"].items():
        yield f"  {name} {version or 'is not installed'}"
    for name, there in found["readers"].items():
        yield f"reads {FORMATS[name]}: {f'yes, by {name}' if there else 'no'}"
    for name, line in (found["missing"] | found["optional"]).items():
        yield f"{name} is missing{'' if name in found['missing'] else ' (optional)'}: {line}"
