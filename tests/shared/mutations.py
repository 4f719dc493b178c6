"""Small files of every format that tfbig reads, and ways to damage them: by byte, by tag and by structure."""

from __future__ import annotations

import json
import shutil
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import imagecodecs
import numpy as np
import tifffile
import zarr
from PIL import Image
from slide_files import NDPI

EXTREMES = [0, 1, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**63]
ODD_VALUES: list[Any] = [
    0,
    -1,
    1,
    2**31,
    10**9,
    10**18,
    0.5,
    None,
    "",
    "x",
    [],
    [0],
    [-1, 2],
    {},
    True,
    float("nan"),
]
TIFF_TYPES = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 16, 17, 18, 99]
TIFF_SUFFIXES = (".tif", ".svs", ".ndpi")


def write_seeds(folder: Path) -> list[Path]:
    """Write one small file of each format, and return their paths."""
    rng = np.random.default_rng(0)
    picture = np.repeat(np.repeat(rng.integers(90, 250, (12, 10, 3), np.uint8), 16, 0), 16, 1)
    _write_tiffs(folder, picture)
    _write_pictures(folder, picture)
    _write_zarrs(folder, picture)
    np.save(folder / "a.npy", picture)
    with h5py.File(folder / "coords.h5", "w") as file:
        data = file.create_dataset("coords", data=rng.integers(0, 99, (20, 2)))
        data.attrs.update({"patch_size": 32, "patch_size_level0": 64, "name": "a"})
    with h5py.File(folder / "features.h5", "w") as file:
        options = {"chunks": (4, 8), "compression": "gzip"}
        file.create_dataset("features", data=rng.random((20, 8), np.float32), **options)
        file["coords"] = rng.integers(0, 99, (20, 2))
        file["coords"].attrs.update({"patch_size": 32, "patch_size_level0": 64})
    (folder / "mpp.csv").write_text("wsi,mpp\n" + "\n".join(f"s{n}.tif,0.{n}5" for n in range(9)))
    settings = "size: 256\noverlap: 0\ntissue: otsu\nclasses: [a, b]\nmpp: 0.5\n"
    (folder / "c.yaml").write_text(settings)
    square = [[0, 0], [90, 0], [90, 90], [0, 0]]
    shape = {"type": "Polygon", "coordinates": [square]}
    feature = {"type": "Feature", "geometry": shape, "properties": {"name": "a"}}
    content = {"type": "FeatureCollection", "features": [feature]}
    (folder / "tissue.geojson").write_text(json.dumps(content))
    return sorted(folder.iterdir())


def _write_tiffs(folder: Path, picture: np.ndarray) -> None:
    common: dict[str, Any] = {"photometric": "rgb", "tile": (64, 64)}
    with tifffile.TiffWriter(folder / "pyramid.tif") as writer:
        resolution: dict[str, Any] = {"resolution": (20000, 20000), "resolutionunit": "CENTIMETER"}
        writer.write(picture, compression="jpeg", subifds=1, **common, **resolution)
        writer.write(picture[::2, ::2].copy(), compression="jpeg", subfiletype=1, **common)
    tifffile.imwrite(folder / "big.tif", picture, bigtiff=True, compression="deflate", **common)
    tifffile.imwrite(folder / "zstd.tif", picture, compression="zstd", predictor=True, **common)
    tifffile.imwrite(folder / "jpeg2000.tif", picture, compression="jpeg2000", **common)
    tifffile.imwrite(folder / "strips.tif", picture, rowsperstrip=7, compression="lzw")
    bands = picture.transpose(2, 0, 1).copy()
    tifffile.imwrite(folder / "bands.tif", bands, photometric="rgb", planarconfig="separate")
    tifffile.imwrite(folder / "plain.ome.tif", picture, photometric="rgb")
    about = "Aperio Image Library v1\r\n160x192 |AppMag = 20|MPP = 0.5"
    tifffile.imwrite(folder / "a.svs", picture, compression="jpeg", description=about, **common)
    shutil.copy(NDPI, folder / "a.ndpi")


def _write_pictures(folder: Path, picture: np.ndarray) -> None:
    Image.fromarray(picture).save(folder / "a.png")
    Image.fromarray(picture).save(folder / "a.jpg")
    Image.fromarray(picture).save(folder / "a.bmp")
    Image.fromarray(picture).convert("P").save(folder / "palette.png")
    (folder / "wide.png").write_bytes(imagecodecs.png_encode(picture.astype(np.uint16) * 257))


def _write_zarrs(folder: Path, picture: np.ndarray) -> None:
    for name, options in (
        ("two.zarr", {"zarr_format": 2}),
        ("gzip.zarr", {"zarr_format": 3, "compressors": zarr.codecs.GzipCodec()}),
        ("shards.zarr", {"zarr_format": 3, "shards": (64, 64, 3)}),
    ):
        array = zarr.create_array(
            folder / name, shape=picture.shape, dtype="u1", chunks=(32, 32, 3), **options
        )
        array[:] = picture
    group = zarr.open_group(folder / "ome.zarr", mode="w", zarr_format=2)
    group.create_array("0", data=picture, chunks=(64, 64, 3))
    units = {"unit": "micrometer", "type": "space"}
    axes = [{"name": "y", **units}, {"name": "x", **units}, {"name": "c"}]
    scale = [{"type": "scale", "scale": [0.5, 0.5, 1]}]
    datasets = [{"path": "0", "coordinateTransformations": scale}]
    group.attrs["multiscales"] = [{"axes": axes, "datasets": datasets}]


def damaged(seed: Path, target: Path, rng: np.random.Generator) -> None:
    """Write a damaged copy of a file, or of a folder of which one file is damaged."""
    if seed.is_dir():
        shutil.copytree(seed, target)
        files = sorted(path for path in target.rglob("*") if path.is_file())
        chosen = files[int(rng.integers(len(files)))]
        metadata = chosen.name in (".zarray", ".zattrs", ".zgroup", "zarr.json")
        change = _by_value if metadata and rng.random() < 0.7 else by_byte
        chosen.write_bytes(change(chosen.read_bytes(), rng))
        return
    shutil.copy(seed, target)
    structure = _STRUCTURES.get(seed.suffix)
    if structure is not None and rng.random() < 0.6:
        structure(target, rng)
    else:
        target.write_bytes(by_byte(target.read_bytes(), rng))


def by_byte(data: bytes, rng: np.random.Generator) -> bytes:
    """Change some bytes, make a word extreme, remove or double a part, or cut off the end."""
    changed = bytearray(data)
    for _ in range(int(rng.integers(1, 6))):
        near = min(len(changed), 4096)  # headers are the most vulnerable part
        place = int(rng.integers(near if rng.random() < 0.7 else len(changed)))
        kind = rng.integers(6)
        if kind <= 1:
            changed[place] = int(rng.integers(256))
        elif kind == 2:
            size = int(rng.choice([2, 4, 8]))
            word = int(rng.choice(len(EXTREMES)))
            order = "little" if rng.random() < 0.8 else "big"
            value = EXTREMES[word] % 2 ** (8 * size)
            changed[place : place + size] = value.to_bytes(size, order)  # type: ignore[arg-type]
        elif kind == 3:
            del changed[place : place + int(rng.integers(1, 64))]
        elif kind == 4:
            changed[place:place] = changed[place : place + int(rng.integers(1, 64))]
        else:
            del changed[place + 1 :]
        if not changed:
            break
    return bytes(changed)


def _by_value(data: bytes, rng: np.random.Generator) -> bytes:
    """Replace or remove values of a JSON document."""
    document = json.loads(data)
    for _ in range(int(rng.integers(1, 4))):
        places = list(_places(document))
        if not places:
            break
        container, key = places[int(rng.integers(len(places)))]
        if rng.random() < 0.2:
            del container[key]
        else:
            container[key] = ODD_VALUES[int(rng.integers(len(ODD_VALUES)))]
    return json.dumps(document).encode()


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Return all pairs of a container and a key in a JSON value."""
    if not isinstance(value, dict | list):
        return []
    keys = list(value) if isinstance(value, dict) else range(len(value))
    return [pair for key in keys for pair in [(value, key), *_places(value[key])]]


def _by_json(path: Path, rng: np.random.Generator) -> None:
    path.write_bytes(_by_value(path.read_bytes(), rng))


def _by_tag(path: Path, rng: np.random.Generator) -> None:
    """Change the type, the number of values, or the value of tags of a TIFF."""
    content = bytearray(path.read_bytes())
    with tifffile.TiffFile(path) as tiff:
        tags = [tag for page in tiff.pages for tag in page.tags.values()]
        wide, order = tiff.is_bigtiff, tiff.byteorder
    for _ in range(int(rng.integers(1, 4))):
        tag = tags[int(rng.integers(len(tags)))]
        kind = rng.integers(4)
        extreme = EXTREMES[int(rng.integers(len(EXTREMES)))]
        if kind == 0:
            content[tag.offset + 2 : tag.offset + 4] = struct.pack(
                order + "H", TIFF_TYPES[int(rng.integers(len(TIFF_TYPES)))]
            )
        elif kind == 1:
            content[tag.offset : tag.offset + 2] = struct.pack(
                order + "H", int(rng.integers(254, 340))
            )
        else:
            size = 8 if wide else 4
            place = tag.offset + (4 if kind == 2 else 4 + size)
            content[place : place + size] = struct.pack(
                order + ("Q" if wide else "I"), extreme % 2 ** (8 * size)
            )
    path.write_bytes(content)


def _by_dataset(path: Path, rng: np.random.Generator) -> None:
    """Remove, replace, or declare otherwise what an HDF5 file holds."""
    with h5py.File(path, "r+") as file:
        if "coords" not in file:
            _by_array(file, rng)
            return
        name = sorted(file)[int(rng.integers(len(file)))]
        kind = rng.integers(5)
        if kind == 0:
            del file[name]
        elif kind == 1:
            del file[name]
            file.create_group(name)
        elif kind == 2:
            del file[name]
            shapes = [(), (0, 2), (3,), (20, 3), (20, 2, 2), (10**9, 2)]
            dtypes = ["i8", "f4", "S5", "?", "u1", "c8"]
            shape = shapes[int(rng.integers(len(shapes)))]
            chunks = True if shape and shape[0] else None
            file.create_dataset(name, shape, dtypes[int(rng.integers(len(dtypes)))], chunks=chunks)
        elif kind == 3:
            for key in list(file[name].attrs):
                if rng.random() < 0.5:
                    del file[name].attrs[key]
        else:
            value = ODD_VALUES[int(rng.integers(len(ODD_VALUES)))]
            is_odd = np.asarray(value).dtype == object  # which HDF5 cannot hold
            file["coords"].attrs["patch_size"] = str(value) if is_odd else value


def _by_array(file: h5py.File, rng: np.random.Generator) -> None:
    """Replace an array in an HDF5 file of weights by one of another size or dtype."""
    names: list[str] = []
    file.visititems(lambda name, item: names.append(name) if hasattr(item, "shape") else None)
    name = names[int(rng.integers(len(names)))]
    del file[name]
    shapes: list[tuple[int, ...]] = [(), (0,), (3, 10**9), (2**40,), (20, 8)]
    kind = ["f4", "S5", "c16", "i8", "V3"][int(rng.integers(5))]
    file.create_dataset(name, shapes[int(rng.integers(len(shapes)))], kind)


def _by_part(path: Path, rng: np.random.Generator) -> None:
    """Change a part of an archive, whose checksum is right."""
    with zipfile.ZipFile(path) as archive:
        parts = {part.filename: archive.read(part) for part in archive.infolist()}
        compression = archive.infolist()[0].compress_type
    name = sorted(parts)[int(rng.integers(len(parts)))]
    by_value = name.endswith(".json") and rng.random() < 0.7
    parts[name] = (_by_value if by_value else by_byte)(parts[name], rng)
    with zipfile.ZipFile(path, "w", compression) as archive:
        for each, data in parts.items():
            archive.writestr(each, data)


def _by_chunk(path: Path, rng: np.random.Generator) -> None:
    """Change the header of a PNG, with a right checksum."""
    content = bytearray(path.read_bytes())
    field, size = [(16, 4), (20, 4), (24, 1), (25, 1), (26, 1), (28, 1)][int(rng.integers(6))]
    values = [0, 1, 2, 3, 4, 6, 8, 16, 13300, 2**31 - 1]
    value = values[int(rng.integers(len(values)))] % 2 ** (8 * size)
    content[field : field + size] = value.to_bytes(size, "big")
    content[29:33] = zlib.crc32(bytes(content[12:29])).to_bytes(4, "big")
    path.write_bytes(content)


_STRUCTURES: dict[str, Callable[[Path, np.random.Generator], None]] = {
    **dict.fromkeys(TIFF_SUFFIXES, _by_tag),
    ".h5": _by_dataset,
    ".png": _by_chunk,
    ".geojson": _by_json,
    **dict.fromkeys((".pt", ".pth", ".npz", ".keras"), _by_part),
}
