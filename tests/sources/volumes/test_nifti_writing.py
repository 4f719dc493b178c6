"""Volumes are written as NIfTI with the geometry of another, plane by plane."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest
from volume_files import OBLIQUE, samples, write_nifti, write_series

import tfbig
from tfbig import sources
from tfbig.errors import SourceError
from tfbig.sources.volumes.raw import ArrayVolume

GEOMETRY = (
    *("pixdim", "qform_code", "sform_code", "xyzt_units", "srow_x", "srow_y", "srow_z"),
    *("quatern_b", "quatern_c", "quatern_d", "qoffset_x", "qoffset_y", "qoffset_z"),
)


@pytest.mark.parametrize("suffix", [".nii", ".nii.gz"])
@pytest.mark.parametrize("kind", [nibabel.Nifti1Image, nibabel.Nifti2Image])
def test_mask_has_the_geometry_of_its_image(suffix: str, kind: Any, tmp_path: Path) -> None:
    image = kind(samples().T, OBLIQUE)
    image.header.set_slope_inter(0.5, 7)
    image.header["cal_max"] = 99
    image.set_qform(np.diag([1, 1, 2, 1]), code=2)
    nibabel.save(image, tmp_path / "image.nii.gz")
    mask = (samples() > 0).astype("uint8")
    ticks: list[tuple[int, int]] = []
    sources.write_nifti(
        tmp_path / f"mask{suffix}",
        ArrayVolume(mask),
        tfbig.open(tmp_path / "image.nii.gz"),
        lambda *numbers: ticks.append(numbers),
    )
    read, like = (nibabel.load(tmp_path / n) for n in (f"mask{suffix}", "image.nii.gz"))
    assert type(read) is kind
    np.testing.assert_array_equal(np.asarray(read.dataobj), mask.T)
    assert read.get_data_dtype() == np.uint8
    for name in GEOMETRY:
        np.testing.assert_array_equal(read.header[name], like.header[name], name)
    np.testing.assert_array_equal(read.affine, like.affine)
    assert ticks == [(n, 5) for n in range(1, 6)]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["image.nii.gz", f"mask{suffix}"]


def test_affine_of_other_formats(tmp_path: Path) -> None:
    volume = tfbig.open(write_series(tmp_path / "ct", samples()))
    sources.write_nifti(tmp_path / "x.nii.gz", volume)
    read = nibabel.load(tmp_path / "x.nii.gz")
    np.testing.assert_allclose(read.affine, volume.affine[:, [2, 1, 0, 3]], rtol=1e-6)
    np.testing.assert_allclose(read.get_fdata(), (samples() - 1024.0).T)
    again = tfbig.open(tmp_path / "x.nii.gz")
    assert again.scaling == (1.0, -1024.0)
    np.testing.assert_array_equal(again.read(0, 5), volume.read(0, 5))


def test_channels_become_the_fourth_axis(tmp_path: Path) -> None:
    array = samples("float32", (5, 6, 7, 2))
    sources.write_nifti(tmp_path / "x.nii", ArrayVolume(array))
    np.testing.assert_array_equal(tfbig.open(tmp_path / "x.nii").read(0, 5), array)
    assert nibabel.load(tmp_path / "x.nii").shape == (7, 6, 5, 2)


def test_same_bytes_each_time(tmp_path: Path) -> None:
    for name in ("a", "b"):
        sources.write_nifti(tmp_path / f"{name}.nii.gz", ArrayVolume(samples()))
    assert (tmp_path / "a.nii.gz").read_bytes() == (tmp_path / "b.nii.gz").read_bytes()


def test_nothing_is_left_after_an_error(tmp_path: Path) -> None:
    path = write_nifti(tmp_path / "x.nii", samples())
    volume = tfbig.open(path)
    volume.close()
    with pytest.raises(SourceError, match="was closed"):
        sources.write_nifti(tmp_path / "y.nii.gz", volume)
    assert [p.name for p in tmp_path.iterdir()] == ["x.nii"]
    with pytest.raises(SourceError, match=r"expected a path that ends in \.nii or \.nii\.gz"):
        sources.write_nifti(tmp_path / "y.nrrd", volume)
