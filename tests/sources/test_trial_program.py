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


def test_damaged_rows_are_refused_and_missing_filters_are_not(tmp_path: Path) -> None:
    """HDF5 may write to freed memory where it cannot read; a filter that is not installed does no harm."""
    with h5py.File(tmp_path / "rows.h5", "w") as file:
        rows = np.random.default_rng(0).integers(0, 99, (64, 64))
        data = file.create_dataset("features", data=rows, chunks=(8, 64), compression="gzip")
        chunk = data.id.get_chunk_info(data.id.get_num_chunks() - 1)
    content = bytearray((tmp_path / "rows.h5").read_bytes())
    content[chunk.byte_offset : chunk.byte_offset + 32] = bytes(32)
    (tmp_path / "rows.h5").write_bytes(content)
    with pytest.raises(SourceError, match=r"rows\.h5: is not a readable HDF5 file: "):
        trial.check("hdf5", tmp_path / "rows.h5")
    with h5py.File(tmp_path / "filter.h5", "w") as file:
        layout = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        layout.set_chunk((4,))
        layout.set_filter(32099, h5py.h5z.FLAG_OPTIONAL, (1,))
        space = h5py.h5s.create_simple((4,))
        h5py.h5d.create(file.id, b"unused", h5py.h5t.NATIVE_INT32, space, layout)
        file["unused"].id.write_direct_chunk((0,), b"anything", 0)
        file["features"] = np.zeros((3, 4))
    trial.check("hdf5", tmp_path / "filter.h5")
