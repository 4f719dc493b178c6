"""The program that opens files first."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest
from slide_files import NDPI

from tfbig.errors import SourceError
from tfbig.sources import trial, trial_program


def test_program_opens_files(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["features"] = np.zeros((3, 4))
        file["empty"] = np.zeros((0, 4))
        file["features"].attrs["size"] = 3
        file.create_group("group")["scalar"] = 1.0
    assert trial_program.open_hdf5(str(tmp_path / "a.h5")) == ""
    assert trial_program.open_slide(str(NDPI)) == ""
    trial.check("hdf5", tmp_path / "a.h5")
    trial.check("openslide", NDPI)
    (tmp_path / "other.h5").write_bytes(b"no HDF5")
    assert "signature not found" in trial_program.open_hdf5(str(tmp_path / "other.h5"))
    with pytest.raises(SourceError, match=r"other\.h5: is not a readable HDF5 file: .*signature"):
        trial.check("hdf5", tmp_path / "other.h5")
