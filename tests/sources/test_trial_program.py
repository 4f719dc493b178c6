"""The program that opens files first."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
from slide_files import NDPI

from tfbig.sources import trial, trial_program


def test_program_opens_files(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["features"] = np.zeros((3, 4))
        file["empty"] = np.zeros((0, 4))
        file["features"].attrs["size"] = 3
        file.create_group("group")["scalar"] = 1.0
    trial_program.open_hdf5(str(tmp_path / "a.h5"))
    trial_program.open_slide(str(NDPI))
    trial.check("hdf5", tmp_path / "a.h5")
    trial.check("openslide", NDPI)
    (tmp_path / "damaged.h5").write_bytes(b"no HDF5")  # an error that this process can catch
    trial.check("hdf5", tmp_path / "damaged.h5")
