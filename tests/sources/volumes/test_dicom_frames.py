"""Compressed frames of DICOM of another size than the header says are refused, whatever compressed them."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import imagecodecs
import numpy as np
import pydicom
import pytest
from volume_files import dataset, samples

import tfbig
from tfbig.errors import SourceError
from tfbig.sources.volumes import dicom_frames


def write_compressed(path: Path, frames: list[bytes], syntax: Any, rows: int, columns: int) -> Path:
    """Write compressed frames of 8 bits, with a header that says these rows and columns."""
    data = dataset(samples("uint8", (len(frames), rows, columns)))
    data.file_meta.TransferSyntaxUID = syntax
    data.PixelData = pydicom.encaps.encapsulate(frames)
    data["PixelData"].is_undefined_length = True
    data.save_as(path, enforce_file_format=True)
    return path


def run_lengths(*segments: np.ndarray) -> bytes:
    """Encode the bytes of each segment by PackBits, after the table of their offsets (DICOM PS3.5, annex G)."""
    packed = [imagecodecs.packbits_encode(each.tobytes()) for each in segments]
    begins = [64 + sum(map(len, packed[:number])) for number in range(len(packed))]
    table = [len(packed), *begins, *[0] * (15 - len(packed))]
    return struct.pack("<16L", *table) + b"".join(packed)


ENCODED: dict[str, tuple[Any, Any]] = {
    "jpeg": (pydicom.uid.JPEGBaseline8Bit, imagecodecs.jpeg8_encode),
    "jpeg-ls": (pydicom.uid.JPEGLSLossless, imagecodecs.jpegls_encode),
    "j2k": (
        pydicom.uid.JPEG2000Lossless,
        lambda image: imagecodecs.jpeg2k_encode(image, codecformat="J2K", reversible=True),
    ),
    "jp2": (
        pydicom.uid.JPEG2000Lossless,
        lambda image: imagecodecs.jpeg2k_encode(image, codecformat="JP2", reversible=True),
    ),
    "rle": (pydicom.uid.RLELossless, run_lengths),
}


@pytest.mark.parametrize("kind", ENCODED)
@pytest.mark.parametrize("size", [(16, 24), (23, 16), (25, 16), (24, 15), (24, 16)])
def test_frames_of_another_size(kind: str, size: tuple[int, int], tmp_path: Path) -> None:
    """They are never turned or cut off; (24, 16) is what the header says."""
    syntax, encode = ENCODED[kind]
    pixels = np.random.default_rng(0).integers(0, 256, (2, *size)).astype(np.uint8)
    frames = [encode(each) for each in pixels]
    path = write_compressed(tmp_path / "x.dcm", frames, syntax, 24, 16)
    if kind == "rle" and size in ((16, 24), (23, 16), (24, 15)):
        if size == (16, 24):  # run lengths say no size: as many pixels are the same image
            return
        with pytest.raises(SourceError, match="its pixels cannot be decoded"):
            tfbig.open(path)
    elif size != (24, 16):
        what = f"is an image of {size[0]} x {size[1]}" if kind != "rle" else "has 400"
        wanted = rf"x\.dcm: frame 0 {what} pixels; expected 24 x 16, by its header"
        with pytest.raises(SourceError, match=wanted):
            tfbig.open(path)
    elif kind == "jpeg-ls":
        with pytest.raises(SourceError, match="its pixels cannot be decoded"):
            tfbig.open(path)  # without a decoder of pydicom
    else:
        found = tfbig.open(path).read(0, 2)[..., 0]
        assert np.array_equal(found, pixels) or kind == "jpeg"
        assert found.shape == (2, 24, 16)


@pytest.mark.parametrize("lacks", ["rows", "segment", "table"])
def test_run_lengths_that_are_too_short(lacks: str, tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (24, 16)).astype(np.uint8)
    frame = {
        "rows": run_lengths(pixels, pixels[:20]),
        "segment": run_lengths(pixels),
        "table": run_lengths(pixels, pixels)[:60],
    }[lacks]
    data = dataset(samples("uint16", (24, 16)))
    data.file_meta.TransferSyntaxUID = pydicom.uid.RLELossless
    data.PixelData = pydicom.encaps.encapsulate([frame])
    data["PixelData"].is_undefined_length = True
    data.save_as(tmp_path / "x.dcm", enforce_file_format=True)
    with pytest.raises(SourceError, match=r"x\.dcm: its pixels cannot be decoded"):
        tfbig.open(tmp_path / "x.dcm")


def test_a_second_segment_that_is_too_long(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (25, 16)).astype(np.uint8)
    frame = run_lengths(pixels[:24], pixels)
    assert [*dicom_frames._segment_lengths(frame)] == [24 * 16, 25 * 16]


def test_more_frames_than_the_header_says(tmp_path: Path) -> None:
    frames = [run_lengths(each) for each in samples("uint8", (4, 24, 16))]
    path = write_compressed(tmp_path / "x.dcm", frames, pydicom.uid.RLELossless, 24, 16)
    data = pydicom.dcmread(path)
    data.NumberOfFrames = 3
    data.save_as(path)
    with pytest.raises(SourceError, match="holds more than 3 frames; expected 3, by its header"):
        tfbig.open(path)


def test_sizes_are_read_by_table_of_offsets(tmp_path: Path) -> None:
    """Frames in several fragments, and with an extended table."""
    frames = [run_lengths(each) for each in samples("uint8", (3, 24, 16))]
    path = tmp_path / "x.dcm"
    for kind in ("fragments", "extended"):
        write_compressed(path, frames, pydicom.uid.RLELossless, 24, 16)
        data = pydicom.dcmread(path)
        if kind == "fragments":
            data.PixelData = pydicom.encaps.encapsulate(frames, fragments_per_frame=2)
        else:
            whole = pydicom.encaps.encapsulate_extended(frames)
            data.PixelData, data.ExtendedOffsetTable, data.ExtendedOffsetTableLengths = whole
        data.save_as(path)
        expected = samples("uint8", (3, 24, 16))
        np.testing.assert_array_equal(tfbig.open(path).read(0, 3)[..., 0], expected)
        data.Rows = 23
        data.save_as(path)
        with pytest.raises(SourceError, match="frame 0 has 384 pixels; expected 23 x 16"):
            tfbig.open(path)
