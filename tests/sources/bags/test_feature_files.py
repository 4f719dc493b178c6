"""Features of a slide that are written by rows."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest

import tfbig
from tfbig import SourceError, open_slide
from tfbig.sources import Coords, FeatureBag, read_coords
from tfbig.sources.bags.feature_files import FeatureWriter, read_written, write_features
from tfbig.sources.slides.slide import Slide

ROWS = np.arange(15, dtype="float32").reshape(3, 5)


@pytest.fixture
def slide(tmp_path: Path) -> Slide:
    np.save(tmp_path / "slide.npy", np.zeros((64, 96, 3), np.uint8))
    return open_slide(tmp_path / "slide.npy", mpp=0.5)


@pytest.fixture
def coords() -> Coords:
    places = np.array([[0, 0], [32, 0], [0, 32]])
    return Coords("slide", places, 16, 2.0, made_with={"mpp": 1.0})


def test_written_features_are_read(slide: Slide, coords: Coords, tmp_path: Path) -> None:
    path = tmp_path / "slide.h5"
    with write_features(path, coords, slide, 5, "uni") as writer:
        writer.write(1, ROWS[1:])
        writer.write(0, ROWS[:1])
        writer.note({"mpp": 1.0, "weights_sha256": None})
        assert not path.exists()
    assert [p.name for p in tmp_path.glob("*.h5")] == ["slide.h5"]
    bag = FeatureBag(path)
    np.testing.assert_array_equal(bag.read(0, 3), ROWS)
    np.testing.assert_array_equal(bag.coords, coords.coords)
    found = read_coords(path)
    assert (found.size, found.step, found.made_with) == (16, 2.0, {"mpp": 1.0})
    with h5py.File(path) as file:
        assert file["features"].attrs["encoder"] == "uni"
    written = read_written(path)
    assert (written.tiles, written.width, written.attributes) == (3, 5, {"mpp": 1.0})


def nothing(writer: FeatureWriter) -> None:
    writer.write(0, ROWS[:2])


def too_wide(writer: FeatureWriter) -> None:
    writer.write(0, np.zeros((1, 6), "float32"))


def too_many(writer: FeatureWriter) -> None:
    writer.write(1, ROWS)


def not_finite(writer: FeatureWriter) -> None:
    writer.write(0, ROWS)
    writer.write(1, np.array([[1, 2, np.inf, 4, 5]], "float32"))


@pytest.mark.parametrize(
    ("write", "kind", "message"),
    [
        (nothing, SourceError, "features of 1 of 3 tiles were not written, the first of tile 2"),
        (too_wide, ValueError, r"features 0:1 of shape \(1, 6\); expected \[k, 5\] of 3 tiles"),
        (too_many, ValueError, "features 1:4 of shape"),
        (not_finite, SourceError, "a feature of tile 1 is not a finite number. Check the weights"),
    ],
)
def test_nothing_is_left_of_wrong_features(
    write: Callable[[FeatureWriter], None],
    kind: type[Exception],
    message: str,
    slide: Slide,
    coords: Coords,
    tmp_path: Path,
) -> None:
    path = tmp_path / "a.h5"

    def attempt() -> None:
        with write_features(path, coords, slide, 5, "uni") as writer:
            write(writer)

    with pytest.raises(kind, match=rf"a\.h5: {message}"):
        attempt()
    assert [p.name for p in tmp_path.iterdir()] == ["slide.npy"]


def test_folder_that_does_not_exist(slide: Slide, coords: Coords, tmp_path: Path) -> None:
    path = tmp_path / "none" / "a.h5"
    with (
        pytest.raises(SourceError, match=r"a\.h5: cannot be written"),
        write_features(path, coords, slide, 5, "uni"),
    ):
        pass


def test_files_of_other_programs(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["coords"] = np.zeros((3, 2))
    with pytest.raises(SourceError, match=r"a\.h5: is not an HDF5 file with 'features'"):
        read_written(tmp_path / "a.h5")


FULL = """
import resource, sys, types
package = sys.modules["tfbig"] = types.ModuleType("tfbig")  # without TensorFlow
package.__path__ = sys.argv[2:]
import numpy as np
from tfbig.errors import SourceError
from tfbig.sources import ArraySource, Coords
from tfbig.sources.bags.feature_files import write_features
from tfbig.sources.slides.opening import SourceSlide

slide = SourceSlide(ArraySource(np.zeros((100, 100, 3), np.uint8), "a"), "numpy")
coords = Coords("a", np.zeros((1000, 2), np.int64), 8, 1.0)
for most in (0, 100, 1000, 300_000, 2_040_000, resource.RLIM_INFINITY):
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))
    try:
        with write_features(sys.argv[1], coords, slide, 512, "e") as writer:
            for start in range(0, 1000, 100):
                writer.write(start, np.ones((100, 512), np.float32))
    except SourceError as error:
        print(error, file=sys.stderr)
"""


def test_a_disk_that_becomes_full(tmp_path: Path) -> None:
    """HDF5 would end the process when a file that it could not write is closed."""
    path = tmp_path / "a.h5"
    program = [sys.executable, "-c", FULL, str(path), *tfbig.__path__]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert (
        len(re.findall(r"/a\.h5: cannot be written: File too large\. Free .*\n", done.stderr)) == 5
    )
    assert [p.name for p in tmp_path.iterdir()] == ["a.h5"]
    assert FeatureBag(path).read(0, 1000).all()
