"""Small volumes of every format that tfbig reads, and ways to damage them: by byte, and by field of the header."""

from __future__ import annotations

import bz2
import gzip
import shutil
import struct
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nibabel
import nrrd
import numpy as np
import pydicom
from mutations import EXTREMES, by_byte
from pydicom.uid import RLELossless
from volume_files import dataset, samples, write_nifti, write_series

EXPECTED = "expected.npy"
"""Voxels `[D, H, W]` of all seeds."""
NUMBERS = [0, -1, 1, 255, 2**15 - 1, -(2**15), 2**31 - 1, -(2**31), 1e30, np.nan, np.inf, -np.inf]
WORDS = [
    *("0", "-1", "1", "2", "nan", "inf", "-inf", "1e308", "1e-308", "2147483648", "", "x", "1 1 1"),
    *("99999999999999999999", "none", "(1,2)", "(1,0,0) (0,1,0) (0,0,nan)", "raw", "gzip", "bzip2"),
    *("double", "big", "LIST", "../x", "/etc/passwd", "x%d.raw 1 5 1", "\N{LATIN SMALL LETTER E}"),
]
LINES = [
    *("byte skip: ", "line skip: ", "data file: ", "datafile: ", "spacings: ", "space origin: "),
    *("kinds: ", "space directions: ", "space: ", "sizes: ", "key:=", "labels: ", "#"),
]
SIMPLE = ("nifti.nii", "nifti2.nii", "raw.nrrd")
COMPRESSED = ("gzip.nii.gz", "gzip.nrrd", "bzip2.nrrd")
FOLDERS = ("detached", "detached-gzip", "series", "frames")
KINDS = (*SIMPLE, *COMPRESSED, *FOLDERS)


def write_seeds(folder: Path) -> None:
    """Write a file or folder for each of `KINDS`, and their voxels."""
    array = samples("uint16")
    np.save(folder / EXPECTED, array)
    write_nifti(folder / "nifti.nii", array)
    write_nifti(folder / "nifti2.nii", array, kind=nibabel.Nifti2Image)
    write_nifti(folder / "gzip.nii.gz", array)
    directions = {"space": "RAS", "space directions": np.diag([0.8, 0.9, 3.0])}
    for encoding in ("raw", "gzip", "bzip2"):
        nrrd.write(str(folder / f"{encoding}.nrrd"), array.T, {**directions, "encoding": encoding})
    for name, encoding in (("detached", "raw"), ("detached-gzip", "gzip")):
        (folder / name).mkdir()
        nrrd.write(str(folder / name / "x.nhdr"), array.T, {"encoding": encoding})
    write_series(folder / "series", array)
    (folder / "frames").mkdir()
    data = dataset(array)
    data.compress(RLELossless)
    data.save_as(folder / "frames" / "x.dcm", enforce_file_format=True)


def damaged(seed: Path, target: Path, rng: np.random.Generator) -> None:
    """Write a copy of a seed with random bytes, or with fields of its header replaced."""
    if seed.is_dir():
        shutil.copytree(seed, target)
        files = sorted(target.iterdir())
        changed = files[int(rng.integers(len(files)))]
    else:
        shutil.copy(seed, target)
        changed = target
    change = FIELDS.get(changed.suffix)
    if change is not None and rng.random() < 0.7:
        for _ in range(int(rng.integers(1, 4))):
            change(changed, rng)
    elif rng.random() < 0.1:
        changed.write_bytes(rng.bytes(int(rng.integers(2000))))
    else:
        changed.write_bytes(by_byte(changed.read_bytes(), rng))


def flipped(seed: Path, target: Path, rng: np.random.Generator) -> None:
    """Write a copy of a compressed file with one byte of its compressed part changed."""
    data = bytearray(seed.read_bytes())
    start = data.index(b"\n\n") + 2 if seed.suffix == ".nrrd" else 0
    data[int(rng.integers(start, len(data)))] ^= int(rng.integers(1, 256))
    target.write_bytes(data)


def _by_nifti_field(path: Path, rng: np.random.Generator) -> None:
    """Set a field of a header to a number that is extreme or none; in a compressed file, with the right check sum."""
    packed = path.suffix == ".gz"
    data = gzip.decompress(path.read_bytes()) if packed else path.read_bytes()
    kind = nibabel.Nifti2Header if data[:4] == struct.pack("<i", 540) else nibabel.Nifti1Header
    size = kind.template_dtype.itemsize
    header = np.frombuffer(data[:size], kind.template_dtype).copy()
    name = str(rng.choice(header.dtype.names))
    flat = header[name].reshape(-1)
    place, number = int(rng.integers(len(flat))), NUMBERS[int(rng.integers(len(NUMBERS)))]
    if flat.dtype.kind == "S":
        flat[place] = rng.bytes(flat.dtype.itemsize)
    elif flat.dtype.kind == "f":
        with np.errstate(all="ignore"):
            flat[place] = number
    else:
        whole = int(number) if np.isfinite(number) else 2**40
        flat[place : place + 1].view(np.uint8)[:] = np.frombuffer(
            (whole % 2 ** (8 * flat.itemsize)).to_bytes(flat.itemsize, "little"), np.uint8
        )
    header[name] = flat.reshape(header[name].shape)
    data = header.tobytes() + data[size:]
    path.write_bytes(gzip.compress(data) if packed else data)


def _by_nrrd_line(path: Path, rng: np.random.Generator) -> None:
    """Replace a word of a line of a header, or remove or add a line."""
    head, _, rest = path.read_bytes().partition(b"\n\n")
    lines = head.decode("latin-1").split("\n")
    place, word = int(rng.integers(len(lines))), WORDS[int(rng.integers(len(WORDS)))]
    kind = rng.integers(4)
    if kind == 0:
        del lines[place]
    elif kind == 1:
        lines.insert(place + 1, LINES[int(rng.integers(len(LINES)))] + word)
    elif kind == 2:
        lines[place] = lines[place].partition(":")[0] + ": " + word
    else:
        words = lines[place].split(" ")
        words[int(rng.integers(len(words)))] = word
        lines[place] = " ".join(words)
    path.write_bytes("\n".join(lines).encode("latin-1") + b"\n\n" + rest)


def _by_dicom_element(path: Path, rng: np.random.Generator) -> None:
    """Replace the value, the length or the kind of an element, or remove it."""
    stored = path.read_bytes()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            data: Any = pydicom.dcmread(path, stop_before_pixels=True)
            elements = [(each.tag, each.VR) for part in (data.file_meta, data) for each in part]
    except Exception:  # of a file that was damaged before
        return
    tag, kind = elements[int(rng.integers(len(elements)))]
    place = stored.find(struct.pack("<HH", tag.group, tag.element) + str(kind).encode())
    if place < 0:
        return
    end = place + 8 + struct.unpack("<H", stored[place + 6 : place + 8])[0]
    head, value = stored[place : place + 6], stored[place + 8 : end]
    change = rng.integers(5)
    if change == 0:
        path.write_bytes(stored[:place] + stored[end:])
        return
    if change == 1:
        head = head[:4] + bytes(
            rng.choice([b"ZZ", b"US", b"DS", b"IS", b"SQ", b"UN", b"OB", b"LO"])
        )
    elif change == 2:
        word = EXTREMES[int(rng.integers(len(EXTREMES)))]
        value = (word % 2 ** (8 * len(value))).to_bytes(len(value), "little")
    elif change == 3:
        value = WORDS[int(rng.integers(len(WORDS)))].replace(" ", "\\").encode()
    else:
        value = rng.bytes(int(rng.integers(20)))
    path.write_bytes(stored[:place] + head + struct.pack("<H", len(value)) + value + stored[end:])


FIELDS: dict[str, Callable[[Path, np.random.Generator], None]] = {
    **dict.fromkeys((".nii", ".gz"), _by_nifti_field),
    **dict.fromkeys((".nrrd", ".nhdr"), _by_nrrd_line),
    ".dcm": _by_dicom_element,
}


def bombs(folder: Path) -> None:
    """Write files of some megabytes that hold, or say that they hold, some gigabytes of zeros."""
    part = bytes(2**27)
    zeros = gzip.compress(part) * 64
    header = nibabel.Nifti2Header()
    header.set_data_shape((2048, 2048, 2048))
    header["magic"] = b"n+2\0\r\n\x1a\n"
    for name, offset, shape in (("all", 544, 2048), ("skipped", 2**32, 8), ("behind", 544, 8)):
        header["dim"][1:4], header["vox_offset"] = shape, offset
        start = gzip.compress(header.structarr.tobytes() + bytes(4))
        (folder / f"{name}.nii.gz").write_bytes(start + zeros)
    many = bz2.compress(part) * 64
    for name, encoding, data, lines in (
        *(
            ("all", kind, content, "sizes: 2048 2048 2048")
            for kind, content in (("gzip", zeros), ("bzip2", many))
        ),
        ("skipped", "gzip", zeros, "sizes: 8 8 8\nbyte skip: 4294967296"),
        ("last", "gzip", zeros, "sizes: 8 8 8\nbyte skip: -1"),
        ("behind", "bzip2", many, "sizes: 8 8 8"),
        ("lines", "raw", b"\n" * 19_000_000, "sizes: 8 8 8\nline skip: 1000000000"),
    ):
        text = f"NRRD0004\ntype: uchar\ndimension: 3\nencoding: {encoding}\n{lines}\n\n"
        (folder / f"{name}-{encoding}.nrrd").write_bytes(text.encode() + data)
    for name, tags in (
        ("frames", {"NumberOfFrames": 2**31 - 1}),
        ("some-frames", {"NumberOfFrames": 60000}),
        ("pixels", {"Rows": 65535, "Columns": 65535}),
    ):
        data = dataset(samples("uint16"))
        for tag, value in tags.items():
            setattr(data, tag, value)
        data.save_as(folder / f"{name}.dcm", enforce_file_format=True)
