"""Maps of numbers per tile: positions, overlaps, and the edges of the slide."""

import numpy as np
import pytest

from tfbig import sources
from tfbig.results import heatmap


@pytest.fixture
def slide(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros((100, 160, 3), np.uint8))
    with_size = sources.open_slide(tmp_path / "a.npy", mpp=0.5)
    yield with_size
    with_size.close()


def test_paints_tiles_in_their_positions(slide):
    coords = sources.Coords("a", np.array([[40, 0], [80, 20]]), 20, 2.0)
    painted, share = heatmap.paint(coords, [0.25, 0.75], slide)
    assert painted.shape == (10, 16)
    assert share == 1.0
    expected = np.full((10, 16), np.nan, np.float32)
    expected[:4, 4:8] = 0.25
    expected[2:6, 8:12] = 0.75
    np.testing.assert_array_equal(painted, expected)
    source = heatmap.as_source(painted, coords, slide)
    assert (source.shape, source.mpp) == ((10, 16, 1), (5.0, 5.0))
    assert source.read(0, 1)[0, :6, 0].tolist() == [0, 0, 0, 0, 0.25, 0.25]


def test_paints_the_mean_of_overlapping_tiles(slide):
    coords = sources.Coords("a", np.array([[0, 0], [20, 0]]), 40, 1.0, 20)
    painted, _ = heatmap.paint(coords, [1.0, 2.0], slide)
    assert painted[0].tolist()[:6] == [1, 1, 1.5, 1.5, 2, 2]


def test_tiles_beyond_the_slide_are_clipped(slide):
    coords = sources.Coords("a", np.array([[-12, -12], [132, 84]]), 36, 1.0)
    painted, share = heatmap.paint(coords, [1.0, 2.0], slide)
    assert painted.shape == (12, 18)
    assert share == pytest.approx(18 * 9 / 160)
    assert np.isfinite(painted[:3, :3]).all()
    assert np.isfinite(painted[9:, 15:]).all()
    assert np.isfinite(painted).sum() == 9 + 9


def test_refuses_a_wrong_number_of_values(slide):
    with pytest.raises(ValueError, match=r"a: values have shape \(3,\); expected \(1,\)"):
        heatmap.paint(sources.Coords("a", np.zeros((1, 2), int), 10, 1.0), np.ones(3), slide)


def test_tiles_that_are_rectangles_of_level_0(slide):
    """A tile of 20 x 20 pixels, each 1 x 2 pixels of level 0, covers rows 20:40 and columns 80:120."""
    coords = sources.Coords("a", np.array([[80, 20]]), 20, 2.0, row_step=1.0)
    assert (coords.steps, coords.sides_at_level_0) == ((1, 2), (20, 40))
    painted, share = heatmap.paint(coords, [0.5], slide)
    assert (painted.shape, share) == ((20, 16), 1)
    expected = np.full((20, 16), np.nan, np.float32)
    expected[4:8, 8:12] = 0.5
    np.testing.assert_array_equal(painted, expected)
    assert heatmap.height_of(painted, coords, slide) == 1
    assert heatmap.as_source(painted, coords, slide).mpp == (2.5, 5.0)
