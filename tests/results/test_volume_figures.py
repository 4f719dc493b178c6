"""Sections of volumes with masks over them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from volume_files import OBLIQUE, SIZE, samples

from tfbig.results import volume_figures
from tfbig.sources import ArrayVolume, VoxelGrid

GRID = VoxelGrid.of_affine(OBLIQUE[:, [2, 1, 0, 3]])


def test_sections_pass_through_what_is_labelled() -> None:
    array = np.zeros(SIZE, "uint8")
    array[1, 2:4, 3] = 1
    array[4, 5, 0] = 2
    empty = ArrayVolume(np.zeros(SIZE, "uint8"))
    assert volume_figures.middle({"a": empty, "b": ArrayVolume(array)}) == (1, 3, 3)
    assert volume_figures.middle({"a": empty}) == (2, 3, 3)
    volume = ArrayVolume(samples())
    for axis in range(3):
        expected = samples().take(2, axis)
        np.testing.assert_array_equal(volume_figures.section(volume, axis, 2)[..., 0], expected)


def test_large_sections_are_thinned() -> None:
    wide = ArrayVolume(np.arange(1100).reshape(1, 1, 1100))
    assert volume_figures.section(wide, 0, 0)[0, :, 0].tolist() == [*range(0, 1100, 3)]


def test_colours_and_directions() -> None:
    gray = np.full((2, 2), 0.5)
    picture = volume_figures.tint(gray, np.array([[0, 1], [2, 0]]))
    np.testing.assert_allclose(picture[0, 0], 0.5)
    np.testing.assert_allclose(picture[0, 1], 0.25 + 0.5 * np.array([0, 158, 115]) / 255)
    upright = volume_figures.upright
    numbers = np.arange(4).reshape(2, 2)
    assert upright(numbers, "SL").tolist() == [[2, 3], [0, 1]]  # the top of the patient is up
    assert upright(numbers, "PR").tolist() == [[1, 0], [3, 2]]  # the right side is on the left
    assert upright(numbers, "??").tolist() == numbers.tolist()


@pytest.mark.slow
def test_picture(tmp_path: Path) -> None:
    volume = ArrayVolume(samples(), grid=GRID)
    masks = {n: ArrayVolume((samples(seed=k) > 900).astype("uint8")) for k, n in enumerate("ab")}
    volume_figures.planes(tmp_path / "x.png", volume, masks, ("background", "vein"), "x")
    with Image.open(tmp_path / "x.png") as picture:
        width, height = picture.size
    assert width == 1200 and height > 800
