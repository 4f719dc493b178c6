"""NIfTI files are read as nibabel reads them, in any part, and refused in one line where they are damaged."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest
from volume_files import OBLIQUE, SIZE, samples, write_nifti

import tfbig
from tfbig.errors import BudgetError, SourceError
from tfbig.sources.files import Package
from tfbig.sources.volumes import nifti, raw

KINDS = {"one": nibabel.Nifti1Image, "two": nibabel.Nifti2Image}


@pytest.mark.parametrize("suffix", [".nii", ".nii.gz"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", ["uint8", "int16", "uint16", "float32", "float64"])
def test_equals_nibabel(suffix: str, kind: str, dtype: str, tmp_path: Path) -> None:
    array = samples(dtype)
    path = write_nifti(tmp_path / f"x{suffix}", array, kind=KINDS[kind])
    volume, image = tfbig.open(path), nibabel.load(path)
    assert isinstance(volume, tfbig.sources.Volume)
    assert (volume.shape, volume.dtype) == ((*SIZE, 1), np.dtype(dtype))
    np.testing.assert_array_equal(volume.read(0, 5)[..., 0], np.asarray(image.dataobj).T)
    np.testing.assert_allclose(volume.affine[:, [2, 1, 0, 3]], image.affine, rtol=1e-12)
    np.testing.assert_allclose(volume.spacing[::-1], image.header.get_zooms()[:3], rtol=1e-6)
    assert volume.orientation == "".join(nibabel.aff2axcodes(image.affine))[::-1]


@pytest.mark.parametrize("suffix", [".nii", ".nii.gz"])
def test_read_any_box(suffix: str, tmp_path: Path) -> None:
    array = samples("int16", (*SIZE, 3))
    volume = tfbig.open(write_nifti(tmp_path / f"x{suffix}", array))
    assert volume.shape == (*SIZE, 3)
    box = (1, 4), (2, 5), (3, 7)
    np.testing.assert_array_equal(volume.read_box(*box), array[1:4, 2:5, 3:7])
    np.testing.assert_array_equal(volume.read(2, 3), array[2:3])
    np.testing.assert_array_equal(volume.read_window((0, 5), (4, 6)), array[:, 4:6])
    with pytest.raises(IndexError, match="rows 2:9 requested, but the image has rows 0:6"):
        volume.read_box((0, 1), (2, 9), (0, 1))
    volume.close()
    with pytest.raises(SourceError, match="was closed"):
        volume.read(0, 1)


def test_scaling_is_kept_and_applied_on_request(tmp_path: Path) -> None:
    image = nibabel.Nifti1Image(samples().T, OBLIQUE)
    image.header.set_slope_inter(0.5, -3)
    nibabel.save(image, tmp_path / "x.nii")
    volume, read = tfbig.open(tmp_path / "x.nii"), nibabel.load(tmp_path / "x.nii")
    assert (volume.scaling, volume.dtype) == ((0.5, -3.0), np.dtype("int16"))
    values = volume.values()
    assert (values.scaling, values.dtype) == ((1.0, 0.0), np.dtype("float32"))
    expected = read.get_fdata().T.astype("float32")
    np.testing.assert_array_equal(values.read(0, 5)[..., 0], expected)


def test_big_endian(tmp_path: Path) -> None:
    header = nibabel.Nifti1Header(endianness=">")
    header.set_data_dtype(">i2")
    array = samples()
    nibabel.save(nibabel.Nifti1Image(array.T.astype(">i2"), OBLIQUE, header), tmp_path / "x.nii.gz")
    assert gzip.decompress((tmp_path / "x.nii.gz").read_bytes())[:4] == (348).to_bytes(4, "big")
    volume = tfbig.open(tmp_path / "x.nii.gz")
    assert volume.dtype.isnative
    np.testing.assert_array_equal(volume.read(0, 5)[..., 0], array)
    np.testing.assert_allclose(volume.affine[:, [2, 1, 0, 3]], OBLIQUE, rtol=1e-6)


def test_colours_vectors_and_flat_images(tmp_path: Path) -> None:
    rgb = np.dtype([("R", "u1"), ("G", "u1"), ("B", "u1")])
    colours = samples("uint8", (*SIZE, 3))
    stored = np.ascontiguousarray(colours.transpose(2, 1, 0, 3)).view(rgb)[..., 0]
    nibabel.save(nibabel.Nifti1Image(stored, OBLIQUE), tmp_path / "rgb.nii")
    np.testing.assert_array_equal(tfbig.open(tmp_path / "rgb.nii").read(0, 5), colours)
    vectors = samples("float32", (*SIZE, 2))
    nibabel.save(
        nibabel.Nifti1Image(vectors.transpose(2, 1, 0, 3)[:, :, :, None], OBLIQUE),
        tmp_path / "vectors.nii",
    )
    np.testing.assert_array_equal(tfbig.open(tmp_path / "vectors.nii").read(0, 5), vectors)
    nibabel.save(nibabel.Nifti1Image(samples()[0].T, OBLIQUE), tmp_path / "flat.nii")
    flat = tfbig.open(tmp_path / "flat.nii")
    assert flat.shape == (1, 6, 7, 1)
    np.testing.assert_array_equal(flat.read(0, 1)[0, ..., 0], samples()[0])


def test_a_volume_of_one_plane(tmp_path: Path) -> None:
    array = samples(shape=(1, 6, 7))
    volume = tfbig.open(write_nifti(tmp_path / "x.nii.gz", array))
    np.testing.assert_array_equal(volume.read(0, 1)[..., 0], array)
    assert volume.orientation == "SPL"


def uncoded(path: Path, pixdim: Any, units: str = "mm") -> Path:
    """Write a file with no affine, only the size of voxels."""
    image = nibabel.Nifti1Image(samples().T, None)
    image.header["pixdim"][1:4] = pixdim
    image.header.set_xyzt_units(units)
    image.header["sform_code"] = image.header["qform_code"] = 0
    path.write_bytes(image.header.structarr.tobytes() + bytes(4) + samples().tobytes())
    data = bytearray(path.read_bytes())
    data[108:112] = np.float32(352).tobytes()
    path.write_bytes(data)
    return path


def test_spacing_without_an_affine(tmp_path: Path) -> None:
    volume = tfbig.open(uncoded(tmp_path / "x.nii", (0.5, 0.25, 2)))
    assert (volume.spacing, volume.affine, volume.orientation) == ((2.0, 0.25, 0.5), None, None)
    np.testing.assert_array_equal(volume.read(0, 5)[..., 0], samples())
    volume = tfbig.open(uncoded(tmp_path / "um.nii", (500, 250, 2000), "micron"))
    assert volume.spacing == (2.0, 0.25, 0.5)
    missing = tfbig.open(uncoded(tmp_path / "y.nii", (0, 1, 1)))
    assert missing.spacing is None
    with pytest.raises(
        SourceError, match=r"y\.nii: does not say its spacing; expected millimetres"
    ):
        tfbig.sources.at_spacing(missing, (1.0, 1.0, 1.0))
    with pytest.raises(
        SourceError, match=r"does not say how it is oriented; .*--orientation stored"
    ):
        missing.turned("SAR")


@pytest.mark.parametrize("share", [0.0, 0.2, 0.5, 0.98])
@pytest.mark.parametrize("suffix", [".nii", ".nii.gz"])
def test_truncated(suffix: str, share: float, tmp_path: Path) -> None:
    path = write_nifti(tmp_path / f"x{suffix}", samples())
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(SourceError, match=r"x\.nii.*(truncated|not a NIfTI file).*again") as caught:
        tfbig.open(path)
    assert "\n" not in str(caught.value)


def test_damaged_gzip_is_found_by_its_sum(tmp_path: Path) -> None:
    path = write_nifti(tmp_path / "x.nii.gz", samples())
    data = bytearray(path.read_bytes())
    data[-6] ^= 255  # of the check sum
    path.write_bytes(data)
    with pytest.raises(
        SourceError, match=r"is damaged or truncated: its gzip data.*incorrect data check"
    ):
        tfbig.open(path)
    path.write_bytes(b"no gzip at all")
    with pytest.raises(
        SourceError, match=r"is damaged or truncated: its gzip data.*incorrect header check"
    ):
        tfbig.open(path)


@pytest.mark.parametrize("shape", [(5, 6, 7, 2, 3), (5, 6, 7, 1, 1, 2)])
def test_more_axes_than_channels(shape: tuple[int, ...], tmp_path: Path) -> None:
    nibabel.save(nibabel.Nifti1Image(samples(shape=shape), OBLIQUE), tmp_path / "x.nii")
    with pytest.raises(SourceError, match="expected three axes of a volume, and one more for its"):
        tfbig.open(tmp_path / "x.nii")


def test_complex_samples_and_missing_files(tmp_path: Path) -> None:
    nibabel.save(nibabel.Nifti1Image(samples("complex64"), OBLIQUE), tmp_path / "x.nii")
    with pytest.raises(SourceError, match="dtype complex64; expected a boolean, integer or real"):
        tfbig.open(tmp_path / "x.nii")
    with pytest.raises(SourceError, match="there is no such file"):
        tfbig.open(tmp_path / "none.nii.gz")


def test_without_nibabel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = write_nifti(tmp_path / "x.nii", samples())
    monkeypatch.setattr(nifti, "nibabel", Package("not_installed"))
    with pytest.raises(SourceError, match=r"needs the nibabel package .*'tfbig\[volumes\]'"):
        tfbig.open(path)


def test_compressed_files_need_room_for_their_samples(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = write_nifti(tmp_path / "x.nii.gz", samples())
    monkeypatch.setattr(raw.shutil, "disk_usage", lambda folder: type("Usage", (), {"free": 100})())
    with pytest.raises(BudgetError, match=r"needs 420 B for its decoded samples in .* Set TMPDIR"):
        tfbig.open(path)


def test_nothing_is_left_in_the_temporary_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = write_nifti(tmp_path / "x.nii.gz", samples())
    (tmp_path / "scratch").mkdir()
    monkeypatch.setattr(raw.tempfile, "tempdir", str(tmp_path / "scratch"))
    volume = tfbig.open(path)
    assert not [*(tmp_path / "scratch").iterdir()]
    path.unlink()
    np.testing.assert_array_equal(volume.read(0, 5)[..., 0], samples())


FIELDS: dict[str, tuple[str, Any, str]] = {
    "intercept nan": ("scl_inter", np.nan, "Valid slope but invalid intercept"),
    "intercept inf": ("scl_inter", np.inf, "Valid slope but invalid intercept"),
    "offset nan": ("vox_offset", np.nan, "cannot convert float NaN"),
    "offset inf": ("vox_offset", np.inf, "cannot convert float inf"),
    "offset negative": ("vox_offset", -4, "has its voxels at byte -4"),
    "offset in the header": ("vox_offset", 100, "has its voxels at byte 100"),
    "offset huge": ("vox_offset", 1e30, "is truncated|would take"),
    "dim negative": ("dim", [3, -1, 1, 1, 1, 1, 1, 1], "header that is damaged"),
    "dim 2 negative": ("dim", [3, 7, -6, -5, 1, 1, 1, 1], "expected three axes"),
    "dim huge": ("dim", [3, 32767, 32767, 32767, 1, 1, 1, 1], "is truncated|would take"),
    "datatype": ("datatype", 77, "is not a NIfTI file"),
}


def changed(path: Path, field: str, value: Any) -> Path:
    """Change a field of the header of an uncompressed or compressed file."""
    read = gzip.decompress if path.suffix == ".gz" else bytes
    write = gzip.compress if path.suffix == ".gz" else bytes
    data = read(write_nifti(path, samples()).read_bytes())
    header = nibabel.Nifti1Header(data[:348], check=False)
    header["scl_slope"], header["scl_inter"] = 1, 0
    header[field] = value
    path.write_bytes(write(header.structarr.tobytes() + data[348:]))
    return path


@pytest.mark.parametrize("suffix", [".nii", ".nii.gz"])
@pytest.mark.parametrize("case", FIELDS)
def test_fields_that_are_wrong(case: str, suffix: str, tmp_path: Path) -> None:
    field, value, message = FIELDS[case]
    path = changed(tmp_path / f"x{suffix}", field, value)
    with pytest.raises(SourceError, match=message) as caught:
        tfbig.open(path)
    assert path.name in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("units", [7, 7 << 3, 255])
def test_unknown_units_are_millimetres(units: int, tmp_path: Path) -> None:
    volume = tfbig.open(changed(tmp_path / "x.nii", "xyzt_units", units))
    np.testing.assert_array_equal(volume.read(0, 5)[..., 0], samples())
    np.testing.assert_allclose(volume.affine[:, [2, 1, 0, 3]], OBLIQUE, rtol=1e-6)


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e38, 1e-38])
def test_an_affine_that_is_none(value: float, tmp_path: Path) -> None:
    volume = tfbig.open(changed(tmp_path / "x.nii", "srow_x", [value, 0, 0, 0]))
    np.testing.assert_array_equal(volume.read(0, 5)[..., 0], samples())
    if volume.spacing is not None and max(volume.spacing) > 1e30:
        with pytest.raises(SourceError, match="would take"):
            tfbig.sources.at_spacing(volume, (1.0, 1.0, 1.0))


def test_no_flipped_bit_of_a_compressed_file_changes_voxels(tmp_path: Path) -> None:
    path = write_nifti(tmp_path / "x.nii.gz", samples())
    stored = path.read_bytes()
    for place in range(0, len(stored), 2):
        path.write_bytes(stored[:place] + bytes([stored[place] ^ 4]) + stored[place + 1 :])
        for reader in (tfbig.open, tfbig.sources.VolumeOnDisk):
            try:
                np.testing.assert_array_equal(reader(path).read(0, 5)[..., 0], samples())
            except SourceError as error:
                assert path.name in str(error)


def test_what_follows_the_voxels_is_read_and_checked(tmp_path: Path) -> None:
    path = write_nifti(tmp_path / "x.nii", samples())
    whole = path.read_bytes() + b"some bytes" * 10
    target = tmp_path / "y.nii.gz"
    for stored in (
        gzip.compress(whole),
        gzip.compress(whole[:700]) + gzip.compress(whole[700:]),
        gzip.compress(whole) + bytes(20000),
    ):
        target.write_bytes(stored)
        np.testing.assert_array_equal(tfbig.open(target).read(0, 5)[..., 0], samples())
    target.write_bytes(gzip.compress(whole)[:-1])
    with pytest.raises(SourceError, match=r"y\.nii\.gz: is damaged or truncated"):
        tfbig.open(target)
