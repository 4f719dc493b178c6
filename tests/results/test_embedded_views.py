"""Views as a page embeds them: tiles of images, and their number of bytes."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tfbig import SourceError
from tfbig.results import embedded_views, slide_viewer


def noise(rows: int, columns: int) -> np.ndarray:
    """Return the image that compresses worst."""
    return np.random.default_rng(0).integers(0, 256, (rows, columns, 3), np.uint8)


def embedded(folder: Path, max_views: int | None = None) -> list[dict[str, Any]]:
    return embedded_views.embed(slide_viewer.read_views(folder)[:max_views])


def whole(image: dict[str, Any]) -> np.ndarray:
    """Put the tiles of the largest level together."""
    rows = [[base64.b64decode(url.split(",")[1]) for url in row] for row in image["levels"][-1]]
    return np.vstack([np.hstack([np.asarray(Image.open(io.BytesIO(t))) for t in r]) for r in rows])


def size(view: dict[str, Any]) -> int:
    images = [view["image"], *(overlay["image"] for overlay in view["overlays"])]
    return sum(
        len(url) for image in images for level in image["levels"] for row in level for url in row
    )


def test_small_image_is_unchanged(tmp_path: Path) -> None:
    image = np.full((600, 700, 3), 77, np.uint8)
    slide_viewer.write_view(tmp_path, "a", image, title="A", mpp=0.5)
    (view,) = embedded(tmp_path)
    assert (view["title"], view["width_um"], view["overlays"]) == ("A", 350, [])
    assert (view["image"]["height"], view["image"]["width"]) == (600, 700)
    np.testing.assert_array_equal(whole(view["image"]), image)


@pytest.mark.slow
def test_images_are_made_smaller(tmp_path: Path) -> None:
    heat = slide_viewer.attention_overlay(noise(750, 875)[..., 0] / 1000, 8)
    for number in range(2):
        slide_viewer.write_view(tmp_path, str(number), noise(1500, 1750), [heat, heat], mpp=4.0)
    for view in embedded(tmp_path):
        assert 0.3 * embedded_views.VIEW_BYTES < size(view) <= embedded_views.VIEW_BYTES
        assert view["width_um"] == 7000
        image = whole(view["image"])
        assert image.shape[1] == view["image"]["width"] > 600
        assert image.shape[1] / image.shape[0] == pytest.approx(3500 / 3000, rel=0.01)
        assert abs(image.mean() - 127.5) < 5  # areas are averaged


def test_many_views_share_the_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded_views, "TOTAL_BYTES", 900_000)
    for number in range(3):
        slide_viewer.write_view(tmp_path, str(number), noise(900, 900))
    views = embedded(tmp_path)
    assert len(views) == 3
    assert sum(map(size, views)) <= 900_000


def test_files_that_cannot_be_shown(tmp_path: Path) -> None:
    slide_viewer.write_view(tmp_path, "a", noise(4, 4))
    Image.new("L", (10_000, 1)).save(tmp_path / "views" / "a.jpg")
    with pytest.raises(SourceError, match=r"a\.jpg: cannot be shown in a report \(1 x 10000 pix"):
        embedded(tmp_path)
    (tmp_path / "views" / "a.jpg").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0")
    with pytest.raises(SourceError, match=r"a\.jpg: cannot be shown in a report .* Remove it"):
        embedded(tmp_path)
