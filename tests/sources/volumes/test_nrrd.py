"""NRRD files are read as pynrrd reads them, in place where they are raw."""

from __future__ import annotations

import gzip
import os
import time
from pathlib import Path
from typing import Any

import nrrd
import numpy as np
import pytest
from volume_files import SIZE, samples

import tfbig
from tfbig.errors import SourceError

LPS = {
    "space": "left-posterior-superior",
    "space directions": np.array([[0.8, 0, 0], [0, 0.9, 0], [0, 0, 3.0]]),
    "space origin": np.array([10.0, 20.0, -30.0]),
}


@pytest.mark.parametrize("encoding", ["raw", "gzip", "bzip2"])
@pytest.mark.parametrize("detached", [False, True])
@pytest.mark.parametrize("endian", ["little", "big"])
def test_equals_pynrrd(encoding: str, detached: bool, endian: str, tmp_path: Path) -> None:
    path, array = tmp_path / ("x.nhdr" if detached else "x.nrrd"), samples()
    stored = array.T.astype(">i2" if endian == "big" else "<i2")
    nrrd.write(str(path), stored, {**LPS, "encoding": encoding, "endian": endian})
    volume = tfbig.open(path)
    np.testing.assert_array_equal(volume.read(0, 5)[..., 0], nrrd.read(str(path))[0].T)
    np.testing.assert_array_equal(
        volume.read_box((1, 3), (2, 6), (3, 5))[..., 0], array[1:3, 2:6, 3:5]
    )
    assert (volume.dtype, volume.name) == (np.dtype("int16"), str(path))
    # from left, back and top to right, front and top
    expected = np.array([[0, 0, -0.8, -10], [0, -0.9, 0, -20], [3, 0, 0, -30], [0, 0, 0, 1]])
    np.testing.assert_allclose(volume.affine, expected)
    assert (volume.spacing, volume.orientation) == ((3.0, 0.9, 0.8), "SPL")


@pytest.mark.parametrize("place", [0, 1, 2, 3])
def test_channels_at_any_place(place: int, tmp_path: Path) -> None:
    array = samples("float32", (*SIZE, 3))
    stored = np.moveaxis(array.transpose(2, 1, 0, 3), 3, place)
    kinds = ["domain"] * 3
    kinds.insert(place, "vector")
    nrrd.write(str(tmp_path / "x.nrrd"), stored, {"kinds": kinds, "encoding": "raw"})
    volume = tfbig.open(tmp_path / "x.nrrd")
    np.testing.assert_array_equal(volume.read(0, 5), array)
    np.testing.assert_array_equal(volume.read_box((1, 3), (2, 6), (3, 5)), array[1:3, 2:6, 3:5])


def test_directions_of_channels_are_none(tmp_path: Path) -> None:
    array = samples("uint8", (*SIZE, 2))
    directions = np.vstack([[np.nan] * 3, LPS["space directions"]])
    header = {**LPS, "space directions": directions, "kinds": ["vector", *["domain"] * 3]}
    nrrd.write(str(tmp_path / "x.nrrd"), array.transpose(3, 2, 1, 0), header)
    volume = tfbig.open(tmp_path / "x.nrrd")
    np.testing.assert_array_equal(volume.read(0, 5), array)
    assert volume.orientation == "SPL"


@pytest.mark.parametrize(
    ("header", "spacing"),
    [
        ({}, None),
        ({"spacings": [0.8, 0.9, 3.0]}, (3.0, 0.9, 0.8)),
        ({"spacings": [0.8, np.nan, 3.0]}, None),
    ],
)
def test_spacing_without_directions(header: Any, spacing: Any, tmp_path: Path) -> None:
    nrrd.write(str(tmp_path / "x.nrrd"), samples().T, header)
    volume = tfbig.open(tmp_path / "x.nrrd")
    assert (volume.spacing, volume.affine) == (spacing, None)


def test_last_bytes_and_skipped_lines(tmp_path: Path) -> None:
    text = "NRRD0004\ntype: short\ndimension: 3\nsizes: 7 6 5\nendian: little\nencoding: raw\n"
    (tmp_path / "x.raw").write_bytes(b"a title\nmore\n" + samples().astype("<i2").tobytes())
    for skip in ("byte skip: -1", "line skip: 2", "line skip: 1\nbyte skip: 5"):
        (tmp_path / "x.nhdr").write_text(f"{text}{skip}\ndata file: x.raw\n\n")
        np.testing.assert_array_equal(tfbig.open(tmp_path / "x.nhdr").read(0, 5)[..., 0], samples())


def write(path: Path, encoding: str = "raw") -> Path:
    nrrd.write(str(path), samples().T, {"encoding": encoding})
    return path


@pytest.mark.parametrize("encoding", ["raw", "gzip", "bzip2"])
@pytest.mark.parametrize("share", [0.0, 0.1, 0.7, 0.99])
def test_truncated(encoding: str, share: float, tmp_path: Path) -> None:
    path = write(tmp_path / "x.nrrd", encoding)
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])
    with pytest.raises(
        SourceError, match=r"x\.nrrd: .*(truncated|not an NRRD|no valid fields)"
    ) as caught:
        tfbig.open(path)
    assert "\n" not in str(caught.value)


HEADERS = {
    "two channel axes": ("sizes: 7 6 5", "sizes: 7 6 5 2 3", "expected three axes of a volume"),
    "text": ("encoding: raw", "encoding: ascii", "has the encoding 'ascii'; expected raw, gzip"),
    "unknown type": (
        "type: short",
        "type: block",
        "no valid fields 'dimension', 'sizes', 'type' and 'endian'",
    ),
    "no endian": ("endian: little\n", "", r"no valid fields .* \(endian missing\)"),
    "list": ("data file: x.raw", "data file: LIST\na.raw\nb.raw", "its samples in several files"),
    "pattern": ("data file: x.raw", "data file: x%d.raw 1 5 1", "its samples in several files"),
    "missing file": (
        "data file: x.raw",
        "data file: y.raw",
        r"y\.raw: cannot be opened: No such file",
    ),
}


@pytest.mark.parametrize("case", HEADERS)
def test_bad_headers(case: str, tmp_path: Path) -> None:
    old, new, message = HEADERS[case]
    text = (
        "NRRD0004\ntype: short\ndimension: 3\nsizes: 7 6 5\nendian: little\nencoding: raw\n"
        "data file: x.raw\n\n"
    ).replace(old, new)
    text = text.replace(
        "dimension: 3", f"dimension: {len(text.split('sizes: ')[1].splitlines()[0].split())}"
    )
    (tmp_path / "x.raw").write_bytes(samples().tobytes())
    (tmp_path / "x.nhdr").write_text(text)
    with pytest.raises(SourceError, match=message) as caught:
        tfbig.open(tmp_path / "x.nhdr")
    assert "\n" not in str(caught.value)


def refused(path: Path, message: str) -> None:
    """Check that a file is refused quickly, in one line that names it."""
    begin = time.perf_counter()
    with pytest.raises(SourceError, match=message) as caught:
        tfbig.open(path)
    assert time.perf_counter() - begin < 5
    assert path.stem in str(caught.value) and "\n" not in str(caught.value)


DETACHED = (
    "NRRD0004\ntype: short\ndimension: 3\nsizes: 7 6 5\nendian: little\nencoding: raw\n"
    "data file: x.raw\n"
)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("byte skip: -2", "byte skip -2 and line skip 0; expected 0 or more"),
        ("line skip: -1", "byte skip 0 and line skip -1; expected 0 or more"),
        ("byte skip: 1000000000000000000000", "is truncated"),
        ("line skip: 1000000000", r"is truncated: it ends \d+ lines before its samples"),
        ("byte skip: nan", "is not an NRRD file"),
        ("spacings: 1", "is not an NRRD file"),
        ("space: RAS\nspace origin: (1,2)\nspace directions: (1,0,0) (0,1,0) (0,0,1)", "not an"),
        ("spacings: 1 2 x", "is not an NRRD file"),
        ("kinds: domain", None),
    ],
)
def test_fields_that_are_wrong(lines: str, message: str | None, tmp_path: Path) -> None:
    (tmp_path / "x.raw").write_bytes(samples().astype("<i2").tobytes())
    path = tmp_path / "x.nhdr"
    path.write_text(f"{DETACHED}{lines}\n\n")
    if message is None:
        np.testing.assert_array_equal(tfbig.open(path).read(0, 5)[..., 0], samples())
    else:
        refused(path, message)


@pytest.mark.parametrize(
    "sizes", ["-4 -5 6", "7 6", "7 6 5 1", "0 6 5", "9999999999 9999999999 9999999999", "1e3 1 1"]
)
def test_sizes_that_are_wrong(sizes: str, tmp_path: Path) -> None:
    (tmp_path / "x.raw").write_bytes(samples().tobytes())
    path = tmp_path / "x.nhdr"
    path.write_text(DETACHED.replace("7 6 5", sizes) + "\n")
    refused(path, "expected three axes|sizes for dimension|truncated|not an NRRD")


def test_samples_are_only_read_beside_the_header(tmp_path: Path) -> None:
    folder = tmp_path / "a"
    folder.mkdir()
    (tmp_path / "secret.raw").write_bytes(samples().tobytes())
    (folder / "link").symlink_to(tmp_path / "secret.raw")
    os.mkfifo(folder / "pipe")
    path = folder / "x.nhdr"
    for field in ("data file", "datafile"):
        for name in ("../secret.raw", str(tmp_path / "secret.raw"), "/etc/passwd", "link"):
            path.write_text(DETACHED.replace("data file: x.raw", f"{field}: {name}") + "\n")
            refused(path, "which is not in its own folder")
        path.write_text(DETACHED.replace("data file: x.raw", f"{field}: pipe") + "\n")
        refused(path, "is not a regular file")


def test_the_last_decompressed_bytes(tmp_path: Path) -> None:
    array = samples().astype("<i2")
    path = tmp_path / "x.nhdr"
    path.write_text(DETACHED.replace("raw\n", "gzip\n", 1) + "byte skip: -1\n\n")
    for before in (b"", b"other bytes"):
        (tmp_path / "x.raw").write_bytes(gzip.compress(before + array.tobytes()))
        np.testing.assert_array_equal(tfbig.open(path).read(0, 5)[..., 0], array)


def test_a_header_without_an_end(tmp_path: Path) -> None:
    path = tmp_path / "x.nrrd"
    path.write_bytes(DETACHED.encode() + b"#" + b"x" * 2**21)
    refused(path, "its header does not end within")
    path.write_bytes(DETACHED.replace("7 6 5", "9 " * 500000).encode() + b"\n")
    refused(path, "sizes for dimension 3")


@pytest.mark.parametrize("encoding", ["gzip", "bzip2"])
def test_no_flipped_bit_of_compressed_samples_changes_voxels(encoding: str, tmp_path: Path) -> None:
    path = tmp_path / "x.nrrd"
    nrrd.write(str(path), samples().T, {"encoding": encoding})
    stored = path.read_bytes()
    start = stored.index(b"\n\n") + 2
    for place in range(start, len(stored), 2):
        path.write_bytes(stored[:place] + bytes([stored[place] ^ 4]) + stored[place + 1 :])
        try:
            np.testing.assert_array_equal(tfbig.open(path).read(0, 5)[..., 0], samples())
        except SourceError as error:
            assert "damaged" in str(error)
