"""Volumes in folders: channels of a case are one volume, and so is a DICOM series."""

from __future__ import annotations

from pathlib import Path

from volume_files import samples, write_series

from tfbig.cli.data import volume_folders


def test_folders(tmp_path: Path) -> None:
    for name in ("a_0000.nii.gz", "a_0001.nii.gz", "b_0001.nii.gz", "c.nrrd", "d.txt", ".e.nii"):
        (tmp_path / name).touch()
    write_series(tmp_path / "ct", samples(shape=(2, 3, 4)))
    (tmp_path / "empty").mkdir()
    names = [path.name for path in volume_folders.volumes_in(tmp_path)]
    assert names == ["a_0000.nii.gz", "b_0001.nii.gz", "c.nrrd", "ct"]
    assert volume_folders.volumes_in(tmp_path / "ct") == [tmp_path / "ct"]
    first = tmp_path / "a_0000.nii.gz"
    assert volume_folders.channels_of(first, 2) == [first, tmp_path / "a_0001.nii.gz"]
    assert volume_folders.channels_of(first, 3) == volume_folders.channels_of(first, 1) == [first]
    cases = [volume_folders.case_of(path) for path in volume_folders.volumes_in(tmp_path)]
    assert cases == ["a", "b", "c", "ct"]
