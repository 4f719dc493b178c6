"""The reader of a volume is chosen by the name of its file, of DICOM by its content."""

from __future__ import annotations

import os
from pathlib import Path

import nrrd
import numpy as np
import pytest
from volume_files import samples, write_nifti, write_series

import tfbig
from tfbig import sources
from tfbig.errors import SourceError
from tfbig.sources.volumes import opening


def test_formats_hold_the_same_voxels(tmp_path: Path) -> None:
    write_nifti(tmp_path / "X.NII.GZ", samples())
    write_nifti(tmp_path / "x.nii", samples())
    nrrd.write(str(tmp_path / "x.nrrd"), samples().T)
    write_series(tmp_path / "series.1", samples())
    for name in ("X.NII.GZ", "x.nii", "x.nrrd", "series.1"):
        path = tmp_path / name
        assert opening.is_volume(path)
        volume, lazy = tfbig.open(path), sources.VolumeOnDisk(path)
        np.testing.assert_array_equal(volume.read(1, 4)[..., 0], samples()[1:4])
        np.testing.assert_array_equal(
            lazy.read_box((1, 4), (2, 3), (0, 7)), volume.read_box((1, 4), (2, 3), (0, 7))
        )
        assert (lazy.shape, lazy.dtype, lazy.grid) == (volume.shape, volume.dtype, volume.grid)
        assert (lazy.scaling, lazy.header) == (volume.scaling, volume.header)
        np.testing.assert_array_equal(sources.resolve(str(path)).read(0, 5)[..., 0], samples())


def test_replaced_and_damaged_while_open(tmp_path: Path) -> None:
    path = write_nifti(tmp_path / "x.nii.gz", samples())
    lazy = sources.VolumeOnDisk(path)
    write_nifti(path, samples(shape=(4, 6, 7)))
    with pytest.raises(SourceError, match=r"was replaced: it is \(4, 6, 7, 1\) now"):
        lazy.read(0, 1)
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(SourceError, match="is damaged or truncated"):
        lazy.read(0, 1)


def test_what_is_no_volume(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text("no volume")
    assert not opening.is_volume(tmp_path / "x.txt") and not opening.is_volume(tmp_path)
    with pytest.raises(
        SourceError, match=r"is no volume; expected one of \.nii\.gz, \.nii, \.nrrd"
    ):
        sources.open_volume(tmp_path / "x.txt")
    with pytest.raises(SourceError, match="holds no DICOM image"):
        sources.open_volume(tmp_path)
    with pytest.raises(SourceError, match="there is no such file"):
        sources.open_volume(tmp_path / "y.nrrd")


def test_pipes_are_never_read(tmp_path: Path) -> None:
    for name in ("x.nii", "x.nii.gz", "x.nrrd", "x.nhdr"):
        os.mkfifo(tmp_path / name)
        for read in (tfbig.open, sources.VolumeOnDisk):
            with pytest.raises(
                SourceError, match=f"{name}: cannot be read: it is not a regular file"
            ):
                read(tmp_path / name)
    os.mkfifo(tmp_path / "x.dcm")
    assert not opening.is_volume(tmp_path / "x.dcm")
    folder = write_series(tmp_path / "series", samples())
    os.mkfifo(folder / "pipe")
    np.testing.assert_array_equal(tfbig.open(folder).read(0, 5)[..., 0], samples())


def test_files_of_a_volume(tmp_path: Path) -> None:
    nrrd.write(str(tmp_path / "x.nhdr"), samples().T)
    assert opening.files_of(tmp_path / "x.nhdr") == [tmp_path / "x.nhdr", tmp_path / "x.raw.gz"]
    folder = write_series(tmp_path / "series", samples())
    assert opening.files_of(folder) == [folder, *sorted(folder.iterdir())]
    for name in ("none.nrrd", "y.nrrd", "y.nii"):
        (tmp_path / "y.nrrd").write_text("no header")
        assert opening.files_of(tmp_path / name) == [tmp_path / name]
