"""Grids: windows, larger pixels and areas."""

from __future__ import annotations

import pytest
from rasterio.crs import CRS
from rasterio.transform import Affine
from scene_files import PLACE, UTM

from tfbig.sources import MapGrid

TURNED = Affine.translation(5e5, 6e6) @ Affine.rotation(20) @ Affine.scale(10, -10)


def grid(transform: Affine = PLACE, crs: str | None = UTM) -> MapGrid:
    return MapGrid.of(None if crs is None else CRS.from_string(crs), transform)


@pytest.mark.parametrize("transform", [PLACE, TURNED])
def test_window_and_scaled(transform: Affine) -> None:
    window = grid(transform).window(7, 3)
    assert window.at(0, 0) == pytest.approx(transform @ (3, 7))
    assert window.at(2, 5) == pytest.approx(transform @ (5, 12))
    assert window.transform == transform @ Affine.translation(3, 7)
    larger = grid(transform).scaled(4, 2)
    assert larger.at(3, 5) == pytest.approx(transform @ (6, 20))


def test_equals() -> None:
    assert grid().equals(grid(), (1000, 1000))
    assert not grid().equals(grid(crs="EPSG:32633"), (1000, 1000))
    nearly = PLACE @ Affine.translation(0.001, 0)
    assert grid().equals(grid(nearly), (1000, 1000))
    assert not grid().equals(grid(PLACE @ Affine.translation(0.5, 0)), (1000, 1000))
    stretched = PLACE @ Affine.scale(1.0001)
    assert grid().equals(grid(stretched), (50, 50))
    assert not grid().equals(grid(stretched), (1000, 1000))


def test_area() -> None:
    assert grid().square_metres == pytest.approx(100)
    assert grid(TURNED).square_metres == pytest.approx(100)
    feet = grid(Affine(10, 0, 0, 0, -10, 0), "EPSG:2263").square_metres
    assert feet == pytest.approx(100 * (1200 / 3937) ** 2)
    assert grid(crs="EPSG:4326").square_metres is None
    assert grid(crs=None).square_metres is None


def test_is_placed() -> None:
    assert not grid(Affine.identity(), None).is_placed
    assert grid(PLACE, None).is_placed


def test_describe() -> None:
    assert grid().describe() == "EPSG:32632, pixels of 10 metres"
    assert grid(crs=None).describe() == "no coordinate system"
    assert grid(Affine(0.5, 0, 0, 0, -0.25, 0), "EPSG:4326").describe() == (
        "EPSG:4326, pixels of 0.25 x 0.5 degrees"
    )
    one = Affine(1, 0, 0, 0, -1, 0)
    assert grid(one).describe() == "EPSG:32632, pixels of 1 metre"
    assert grid(Affine(2, 0, 0, 0, -2, 0), "EPSG:2263").describe() == (
        "EPSG:2263, pixels of 2 US survey feet"
    )
