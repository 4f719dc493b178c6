"""Fixtures of the tests of sources: one TIFF file of every kind."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import tifffile
from slide_files import TIFFS


@pytest.fixture(scope="session")
def tiffs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Paths of all `TIFFS`, by name."""
    folder = tmp_path_factory.mktemp("tiffs")
    for name, (array, options) in TIFFS.items():
        tifffile.imwrite(folder / f"{name}.tif", array, **options)
    return {name: folder / f"{name}.tif" for name in TIFFS}


@pytest.fixture
def tiled(tiffs: dict[str, Path], tmp_path: Path) -> Path:
    """A tiled file that a test may damage."""
    return Path(shutil.copy(tiffs["deflate_tiles"], tmp_path / "tiled.tif"))
