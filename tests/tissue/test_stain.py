"""Colours of slides: found on tissue only, and slides that have none are refused in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tfbig import SourceError, open_slide, sources
from tfbig.tissue import find_stains


def stained(tmp_path: Path, tissue: Any, name: str = "slide.npy") -> Any:
    """Return a slide of glass with tissue in its middle."""
    image = np.full((400, 300, 3), 244, "uint8")
    rows, columns = tissue.shape[:2]
    image[100 : 100 + rows, 50 : 50 + columns] = tissue
    np.save(tmp_path / name, image)
    return open_slide(tmp_path / name)


def tissue(seed: int = 0) -> Any:
    """Return tissue of two stains."""
    stains = np.array([[0.65, 0.70, 0.29], [0.27, 0.85, 0.45]])
    density = np.random.default_rng(seed).gamma(4.0, 0.2, (200, 200, 2)) @ stains
    return (240 * np.exp(-density) - 1).clip(0, 255).round().astype("uint8")


@pytest.mark.parametrize("method", ["macenko", "reinhard"])
def test_glass_does_not_count(method: str, tmp_path: Path) -> None:
    """The colours are those of the tissue, up to the pixels at its border."""
    found = find_stains(stained(tmp_path, tissue()), method)
    kind: Any = type(found)
    expected = kind.of(tissue())
    for ours, alone in zip(vars(found).values(), vars(expected).values(), strict=True):
        np.testing.assert_allclose(ours, alone, rtol=0.05, atol=0.05)
    assert isinstance(found, sources.Macenko if method == "macenko" else sources.Reinhard)


def test_slides_of_two_scanners_look_alike(tmp_path: Path) -> None:
    """A slide and its pale copy, which differ by 43 grey values on average, are mapped to similar colours."""
    pale = (255 - (255 - tissue().astype(float)) * 0.7).astype("uint8")
    for method, limit in (("macenko", 16), ("reinhard", 6)):
        results: list[Any] = []
        for name, image in (("a.npy", tissue()), ("b.npy", pale)):
            found: Any = find_stains(stained(tmp_path, image, name), method)
            results.append(found.mapped(image, found.reference).mean((0, 1)))
        assert np.abs(results[0] - results[1]).max() < limit


def test_refusals(tmp_path: Path) -> None:
    white = stained(tmp_path, np.full((1, 1, 3), 244, "uint8"))
    for method in ("macenko", "reinhard"):
        with pytest.raises(SourceError, match=r"slide\.npy: has .*'" + method) as error:
            find_stains(white, method)
        assert "\n" not in str(error.value)
    with pytest.raises(SourceError, match="has one stain only"):
        find_stains(stained(tmp_path, np.full((200, 200, 3), (150, 80, 160), "uint8")), "macenko")
    with pytest.raises(ValueError, match="received method 'vahadane'; expected 'macenko'"):
        find_stains(white, "vahadane")
    np.save(tmp_path / "grey.npy", np.zeros((50, 50), "uint8"))
    with pytest.raises(SourceError, match="stain normalisation expects 3 channels"):
        find_stains(open_slide(tmp_path / "grey.npy"))
