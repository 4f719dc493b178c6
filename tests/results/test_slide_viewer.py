"""Overlays of slides, image pyramids, and the files of a view."""

from contextlib import closing

import numpy as np
import pytest
from PIL import Image

from tfbig.results import heatmap, slide_viewer
from tfbig.results.geojson import COLOURS, hex_of
from tfbig.sources import Coords, open_slide


def test_pyramid_averages_and_rounds_sides_up():
    image = np.arange(5 * 3 * 3, dtype=np.uint8).reshape(5, 3, 3)
    whole, half, quarter, last = slide_viewer.pyramid(image, 1)
    assert whole is image
    assert [level.shape for level in (half, quarter, last)] == [(3, 2, 3), (2, 1, 3), (1, 1, 3)]
    assert half[0, 0].tolist() == np.rint(image[:2, :2].mean((0, 1))).astype(int).tolist()
    assert half[2, 1].tolist() == image[4, 2].tolist()


def test_pyramid_weights_colours_by_opacity():
    image = np.zeros((2, 2, 4), np.uint8)
    image[0, 0] = 200, 100, 50, 255
    _, half = slide_viewer.pyramid(image, 1)
    assert half[0, 0].tolist() == [200, 100, 50, 64]


def test_class_overlay():
    overlay = slide_viewer.class_overlay("predicted", np.array([[0, 1], [2, 9]]), [*"abcdefghij"])
    assert overlay.image[0, 0].tolist() == [0, 0, 0, 0]
    assert overlay.image[0, 1].tolist() == [*COLOURS[0], 255]
    assert overlay.image[1, 1].tolist() == [*COLOURS[0], 255]  # colours repeat
    assert overlay.legend[:2] == (("#009e73", "b"), ("#d55e00", "c"))


def test_colours_of_a_class_overlay():
    overlay = slide_viewer.class_overlay(
        "tissue", np.array([[0, 1]]), ("", "tissue"), colours=COLOURS[1:]
    )
    assert overlay.image[0, 1].tolist() == [*COLOURS[1], 255]
    assert overlay.legend == (("#d55e00", "tissue"),)


def test_attention_overlay():
    """Eight tiles whose mean is 1/8, and one place without a tile."""
    times = np.array([[0.0, 0.125, 0.5], [1.0, 2.0, 8.0], [20.0, np.nan, 1.0]])
    overlay = slide_viewer.attention_overlay(times / 8, 8, 1.5)
    light = overlay.image[..., :3].astype(int).sum(-1).ravel()
    assert light[0] == light[1] > light[2] > light[3] > light[4] > light[5] == light[6]
    opacity = overlay.image[..., 3].ravel()
    assert opacity[[0, 1, 5, 6, 7]].tolist() == [round(0.3 * 255)] * 2 + [255, 255, 0]
    assert opacity[3] == pytest.approx(0.65 * 255, abs=1)  # the mean is in the middle
    texts = [text for _, text in overlay.legend]
    assert texts == ["0.125 or less", "0.5", "1", "2", "8 or more"]
    assert overlay.legend[2][0] == hex_of(overlay.image[1, 0, :3])
    assert overlay.share == 1.5


def test_attention_has_the_same_colours_for_slides_of_any_size():
    small, large = np.full((1, 2), 1 / 2), np.full((1, 200), 1 / 200)
    small[0, 0], large[0, 0] = 4 / 2, 4 / 200
    first, second = (slide_viewer.attention_overlay(a, a.size) for a in (small, large))
    assert first.image[0, :2].tolist() == second.image[0, :2].tolist()
    assert first.legend == second.legend


def test_round_trip_of_a_view(tmp_path):
    overlay = slide_viewer.class_overlay("mask", np.array([[0, 1]]), ("ground", "tissue"), 0.5)
    slide_viewer.write_view(tmp_path, "b", np.zeros((4, 6, 1), np.uint8), mpp=0.5)
    slide_viewer.write_view(tmp_path, "a", np.zeros((4, 6, 3), np.uint8), [overlay], title="A")
    first, second = slide_viewer.read_views(tmp_path)
    assert (first.title, first.mpp, second.title, second.mpp) == ("A", None, "b", 0.5)
    (layer,) = first.overlays
    assert (layer.name, layer.share, layer.legend) == ("mask", 0.5, (("#009e73", "tissue"),))
    assert first.file.is_file() and layer.file.is_file()


@pytest.mark.parametrize(("rows", "columns"), [(300, 500), (300, 512), (257, 511)])
def test_tiles_at_the_edge_end_with_the_slide(rows, columns, tmp_path):
    """The last tiles end with the slide, and so overlap the ones before them; the overlay has its size to a pixel."""
    np.save(tmp_path / "a.npy", np.zeros((rows, columns, 3), np.uint8))
    corners = np.array([[0, 0], [columns - 64, 0], [0, rows - 64], [columns - 64, rows - 64]])
    with closing(open_slide(tmp_path / "a.npy")) as slide:
        painted, share = heatmap.paint(Coords("a", corners, 64, 1.0), np.ones(4), slide)
        overlay = slide_viewer.class_overlay("tiles", np.isfinite(painted), ("", "tile"), share)
        slide_viewer.write_slide_view(tmp_path, "a", slide, [overlay], title="A")
    (view,) = slide_viewer.read_views(tmp_path)
    with Image.open(view.overlays[0].file) as file:
        pixels = np.asarray(file)
    step = columns * view.overlays[0].share / pixels.shape[1]  # of a pixel, in pixels of the slide
    assert columns == pytest.approx(pixels.shape[1] * step, abs=step)
    assert rows == pytest.approx(pixels.shape[0] * step, abs=step)
    for sums, side in ((pixels[..., 3].sum(0), columns), (pixels[..., 3].sum(1), rows)):
        covered = np.flatnonzero(sums) * step
        ends = covered[covered > side / 2].min(), covered[-1] + step
        assert ends == pytest.approx((side - 64, side), abs=64 / 8 + step)  # to a quarter of a tile


def test_view_of_a_slide_has_the_pixel_size_of_its_thumbnail(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros((100, 2 * slide_viewer.MAX_SIDE, 1), np.uint8))
    slide = open_slide(tmp_path / "a.npy", mpp=0.25)
    slide_viewer.write_slide_view(tmp_path, "a", slide, title="A")
    (view,) = slide_viewer.read_views(tmp_path)
    assert (view.title, view.mpp) == ("A", 0.5)


def test_overlay_whose_pixels_are_not_square(tmp_path):
    """An overlay of 50 x 200 pixels over a slide of 100 x 160 has its third quarter of rows in rows 50:75."""
    labels = np.zeros((50, 200), int)
    labels[25:38, 100:] = 1
    overlay = slide_viewer.class_overlay("mask", labels, ("ground", "tissue"), height=1.0)
    image = np.zeros((100, 160, 3), np.uint8)
    slide_viewer.write_view(tmp_path, "a", image, [overlay])
    (view,) = slide_viewer.read_views(tmp_path)
    with Image.open(view.overlays[0].file) as file:
        painted = np.asarray(file)[..., 3] > 0
    assert painted.shape[1] / painted.shape[0] == pytest.approx(160 / 100, rel=0.01)
    rows, columns = (np.flatnonzero(painted.any(axis)) for axis in (1, 0))
    side = 160 / painted.shape[1]
    edges = np.array([rows[0], rows[-1] + 1, columns[0], columns[-1] + 1]) * side
    assert edges == pytest.approx((50, 76, 80, 160), abs=1)
