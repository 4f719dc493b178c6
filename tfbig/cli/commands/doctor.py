"""Report versions, devices, memory and readers, and how to install what is missing."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tensorflow as tf

from tfbig.cli.data import encoder_list, inspection
from tfbig.cli.settings import choices
from tfbig.cli.settings.commands import DoctorSettings
from tfbig.sources.slides import openslide, zarr
from tfbig.system import cpu_allocator
from tfbig.system.budget import available_bytes
from tfbig.units import counted, format_bytes

NEEDED = (
    *("tensorflow", "keras", "numpy", "tifffile", "imagecodecs", "openslide-python"),
    *("openslide-bin", "h5py", "scikit-image", "scipy", "shapely", "matplotlib", "tqdm"),
    "rasterio",
)
OPTIONAL = {
    "zarr": "pip install 'tfbig[zarr]'",
    **dict.fromkeys(("nibabel", "pynrrd", "pydicom"), "pip install 'tfbig[volumes]'"),
    "geopandas": "pip install 'tfbig[scenes]'",
    "tensorboard": "pip install 'tfbig[log]'",
}
FORMATS = {
    "tifffile": "TIFF, OME-TIFF, GeoTIFF, SVS",
    "openslide": "NDPI, MRXS, SCN, BIF, Philips, CZI, DICOM",
    "zarr": "zarr, OME-Zarr",
    "rasterio": "scenes in GeoTIFF, COG, JPEG 2000, VRT",
    "geopandas": "outlines in GeoJSON, GeoPackage, shapefile, FlatGeobuf",
    "nibabel": "volumes in NIfTI",
    "pynrrd": "volumes in NRRD",
    "pydicom": "volumes in DICOM series",
}


def run(settings: DoctorSettings) -> int:
    """Print the report; return 1 if a required package is missing, and 3 if data have faults."""
    if settings.data is not None:
        return _check_data(Path(settings.data), settings.json)
    system = inspect_system()
    print(json.dumps(system, indent=2) if settings.json else "\n".join(_lines(system)))
    return 1 if system["missing"] else 0


def _check_data(data: Path, as_json: bool) -> int:
    """Print what is in a folder or a table, and what will fail or mislead a run; return 3 if there is any of it."""
    found = inspection.inspect(data)
    if as_json:
        print(json.dumps({"facts": found.facts, "faults": found.faults}, indent=2))
    else:
        lines = [*found.facts, *(f"check: {fault}" for fault in found.faults)]
        print("\n".join(lines or [f"{data}: nothing found"]))
        print(
            f"{counted(len(found.faults), 'line')} to check" if found.faults else "nothing to check"
        )
    return 3 if found.faults else 0


def inspect_system() -> dict[str, Any]:
    """Inspect versions, devices, memory and readers, as `--json` prints them."""
    versions = {name: _version(name) for name in (*NEEDED, *OPTIONAL)}
    codecs = versions["tifffile"] and versions["imagecodecs"]
    readers = {name: versions.get(name) is not None for name in FORMATS} | {
        "tifffile": bool(codecs),
        "openslide": not openslide.openslide.missing,
        "zarr": zarr.zarr is not None,
    }
    missing = {name: f"pip install {name}" for name in NEEDED if versions[name] is None}
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "packages": versions,
        "accelerators": [device.name for device in tf.config.list_physical_devices("GPU")],
        "cores": os.cpu_count(),
        "memory_available_bytes": available_bytes(),
        "tensors": cpu_allocator.describe(),
        "disk_free_bytes": shutil.disk_usage(Path.cwd()).free,
        "readers": readers,
        "encoders": list(choices.FEATURE_ENCODERS),
        "missing": missing,
        "optional": {name: line for name, line in OPTIONAL.items() if versions[name] is None},
    }


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _lines(system: dict[str, Any]) -> Iterator[str]:
    yield f"python {system['python']} on {system['system']}, {system['cores']} cores"
    devices = (
        ", ".join(system["accelerators"]) or "none found by TensorFlow; everything runs on the CPU"
    )
    yield f"accelerators: {devices}"
    memory, disk = (
        format_bytes(system[f"{key}_bytes"]) for key in ("memory_available", "disk_free")
    )
    yield f"memory available {memory}, disk free here {disk}"
    yield f"memory of tensors on the CPU: {system['tensors']}"
    for name, version in system["packages"].items():
        yield f"  {name} {version or 'not installed'}"
    for name, there in system["readers"].items():
        yield f"reads {FORMATS[name]}: {f'yes, by {name}' if there else _how_to_read(name)}"
    yield encoder_list.summary()
    for name, line in (system["missing"] | system["optional"]).items():
        yield f"{name} is missing{'' if name in system['missing'] else ' (optional)'}: {line}"


def _how_to_read(name: str) -> str:
    """The answer for a reader that is missing."""
    return f"no; {OPTIONAL[name]}" if name in OPTIONAL else "no"
