"""Planes of a volume side by side, with masks over them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from volume_files import OBLIQUE, SIZE, samples

from tfbig.results import slide_viewer, volume_montage
from tfbig.sources import ArrayVolume, VoxelGrid
from tfbig.sources.volumes.grid import Spacing

CLASSES = ("background", "artery", "vein")


@pytest.mark.parametrize(
    ("first", "stop", "most", "expected"),
    [
        (0, 5, 48, [0, 1, 2, 3, 4]),
        (3, 4, 48, [3]),
        (10, 20, 4, [10, 13, 16, 19]),
        (0, 100, 3, [0, 50, 99]),
    ],
)
def test_planes_are_evenly_spaced(first: int, stop: int, most: int, expected: list[int]) -> None:
    assert volume_montage.evenly_spaced(first, stop, most) == expected


def test_range_of_labelled_planes() -> None:
    array = np.zeros((9, 4, 4), "uint8")
    empty, labels, prediction = (ArrayVolume(array.copy()) for _ in range(3))
    assert volume_montage.labelled({"labels": empty}) == (0, 9)
    array[2, 1, 1] = 1
    labels = ArrayVolume(array.copy())
    array[6, 0, 0] = 2
    prediction = ArrayVolume(array)
    assert volume_montage.labelled({"labels": labels, "prediction": empty}) == (2, 3)
    assert volume_montage.labelled({"labels": labels, "prediction": prediction}) == (2, 7)


def test_planes_lie_row_by_row_with_gaps() -> None:
    planes = [np.full((2, 3), n, "uint8") for n in (1, 2, 3)]
    sheet = volume_montage.sheet(planes, 2)
    gap = volume_montage.GAP
    assert sheet.shape == (4 + gap, 6 + gap)
    assert (sheet[:2, :3] == 1).all() and (sheet[:2, 3 + gap :] == 2).all()
    assert (sheet[2 + gap :, :3] == 3).all()
    assert sheet.sum() == 6 * (1 + 2 + 3)


def _view(
    tmp_path: Path, labels: np.ndarray, spacing: Spacing | None, affine: np.ndarray | None = None
) -> slide_viewer.View:
    grid = VoxelGrid(spacing) if affine is None else VoxelGrid.of_affine(affine)
    volume = ArrayVolume(samples(), grid=grid)
    masks = {"labels": ArrayVolume(labels), "prediction": ArrayVolume(labels)}
    volume_montage.write_view(tmp_path, "case", volume, masks, CLASSES, "case: Dice 1")
    (view,) = slide_viewer.read_views(tmp_path)
    return view


def test_view_has_planes_of_the_labels_and_a_layer_for_each_mask(tmp_path: Path) -> None:
    labels = np.zeros(SIZE, "uint8")
    labels[1, :, : SIZE[2] // 2] = 1
    labels[2] = 2
    view = _view(tmp_path, labels, (3.0, 1.0, 2.0))
    assert view.title == "case: Dice 1" and view.file.name == "case.planes.jpg"
    tall, wide = SIZE[1], 2 * SIZE[2]  # millimetres
    side = volume_montage.PLANE_SIDE
    assert view.mpp == pytest.approx(1000 * wide / (side * wide / max(tall, wide)))
    assert [layer.name for layer in view.overlays] == ["labels", "prediction"]
    assert [text for _, text in view.overlays[0].legend] == ["artery", "vein"]
    height = round(side * tall / wide)
    with Image.open(view.file) as picture:
        assert picture.size == (side, 2 * height + volume_montage.GAP)  # one above the other
        factor = slide_viewer.SMOOTH_SIDE // side
    with Image.open(view.overlays[0].file) as layer:
        pixels = np.asarray(layer)[::factor, ::factor]
    first, second = pixels[:height], pixels[-height:]
    artery, vein = (np.array(_rgb(colour)) for colour, _ in view.overlays[0].legend)
    assert (first[5, 5, :3] == artery).all() and first[5, -20, 3] == 0
    assert (second[5, 20, :3] == vein).all() and (second[5, -5, :3] == vein).all()


def _rgb(colour: str) -> list[int]:
    return [int(colour[place : place + 2], 16) for place in (1, 3, 5)]


def test_planes_are_upright(tmp_path: Path) -> None:
    grid = VoxelGrid.of_affine(OBLIQUE[:, [2, 1, 0, 3]])
    down, across = str(grid.orientation)[1:]
    labels = np.zeros(SIZE, "uint8")
    labels[2, 0, 0] = 1
    view = _view(tmp_path, labels, None, OBLIQUE[:, [2, 1, 0, 3]])
    with Image.open(view.overlays[0].file) as layer:
        opaque = np.argwhere(np.asarray(layer)[..., 3] > 0)
        size = layer.height, layer.width
    is_low, is_right = opaque.mean(0) > np.array(size) / 2
    assert (is_low, is_right) == (down in "SA", across in "RA")


def test_all_planes_have_the_same_grey_scale(tmp_path: Path) -> None:
    values = np.zeros((3, 20, 20), "int16")
    values[1], values[2] = 500, 1000
    volume, mask = ArrayVolume(values), ArrayVolume(np.zeros(values.shape, "uint8"))
    volume_montage.write_view(tmp_path, "case", volume, {"prediction": mask}, CLASSES, "case")
    (view,) = slide_viewer.read_views(tmp_path)
    assert view.mpp is None
    with Image.open(view.file) as picture:
        gray = np.asarray(picture.convert("L"))
    side = volume_montage.PLANE_SIDE
    step = side + volume_montage.GAP
    places = [(step * (n // 2) + side // 2, step * (n % 2) + side // 2) for n in range(3)]
    assert [round(int(gray[place]) / 255, 1) for place in places] == [0.0, 0.5, 1.0]


@pytest.mark.parametrize(("rows", "is_numbered"), [(16, True), (40, False)])
def test_numbers_fit_into_narrow_planes(rows: int, is_numbered: bool, tmp_path: Path) -> None:
    """Planes 20 and 8 pixels wide: what lies between them stays black."""
    values = np.full((24, rows, 1), 1000, "int16")
    values[:, -1] = 0
    volume, mask = ArrayVolume(values), ArrayVolume(np.zeros(values.shape, "uint8"))
    volume_montage.write_view(tmp_path, "case", volume, {"prediction": mask}, CLASSES, "case")
    (view,) = slide_viewer.read_views(tmp_path)
    with Image.open(view.file) as picture:
        gray = np.asarray(picture.convert("L"))
    width, gap = volume_montage.PLANE_SIDE // rows, volume_montage.GAP
    lefts = range(0, gray.shape[1], width + gap)
    corners = [gray[:40, left : left + width] for left in lefts]
    between = [gray[:, left - gap : left] for left in lefts[1:]]
    assert len(lefts) in (20, 24)
    assert all(gaps.max() < 100 for gaps in between)
    assert all((corner.min() < 50) == is_numbered for corner in corners)
