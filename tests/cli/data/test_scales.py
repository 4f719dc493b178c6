"""Lines about sizes of pixels: odd ones, and those that differ between the slides of a run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tfbig.cli.data import scales
from tfbig.cli.data.scales import Scale
from tfbig.sources import open_slide


def test_slides_that_agree() -> None:
    read = {"a": Scale((0.5, 0.5), {}), "b": Scale((0.499, 0.502), {})}
    assert scales.lines(read) == []
    assert scales.lines({"a": Scale(None, {}), "b": Scale(None, {})}) == []
    assert scales.lines({}) == []


@pytest.mark.parametrize("pixel", [(0.468, 0.468), (0.5, 0.25)])
def test_slides_that_differ(pixel: tuple[float, float]) -> None:
    (line,) = scales.lines({"a": Scale((0.5, 0.5), {}), "b": Scale(pixel, {})})
    each = "0.468 um" if pixel[0] == pixel[1] else "0.5 x 0.25 um"
    assert line.startswith(
        f"slides are read at different sizes of pixels, from {each} (b) to 0.5 um (a); expected"
    )


def test_sizes_that_are_unknown() -> None:
    (line,) = scales.lines({"a": Scale((0.5, 0.5), {}), "b": Scale(None, {})})
    assert "is known for 1 of 2 slides, but not for others, such as b: these may be" in line


def test_advice_is_what_the_items_have() -> None:
    """Images and slides that are read as they are have no `--mpp`."""
    for items in (scales.WHOLE_SLIDES, scales.IMAGES):
        said = scales.lines({"a": Scale((0.5, 0.5), {}), "b": Scale(None, {})}, items)
        said += scales.lines({"a": Scale((0.5, 0.5), {}), "b": Scale((1.0, 1.0), {})}, items)
        said += scales.against_run({"a": (0.5, 0.5)}, [(1.0, 1.0)], items)
        assert len(said) == 3 and not any("--" in line for line in said)
        assert f"1 of 2 {items.noun}s" in said[0] and f"1 of 1 {items.noun}," in said[2]


def test_doubts_of_one_kind_are_one_line(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros((30, 20, 3), np.uint8))
    slide = open_slide(tmp_path / "a.npy", mpp=0.234)
    slide.magnification = 20.0
    odd = scales.scale_of(slide, (0.5, 0.5))
    (line,) = scales.lines({"a": odd, "b": odd, "c": Scale((0.5, 0.5), {})})
    assert line == (
        "2 of 3 slides with a magnification that contradicts the size of pixels, such as a: 20x, but 0.234 x 0.234 um "
        "a pixel, which is 42.7x; the micrometres are used."
    )


def test_slides_against_those_of_the_run() -> None:
    trained = [(0.468, 0.468), (0.47, 0.47)]
    assert scales.against_run({"a": (0.469, 0.469), "b": None}, trained) == []
    assert scales.against_run({"a": (0.234, 0.234)}, []) == []
    (line,) = scales.against_run({"a": (0.469, 0.469), "b": (0.234, 0.234)}, trained)
    assert line.startswith(
        "read at another size of pixels than the run was trained on: 1 of 2 slides"
    )
    assert "such as b at 0.234 um, trained on 0.468 um to 0.47 um; results may be wrong." in line
