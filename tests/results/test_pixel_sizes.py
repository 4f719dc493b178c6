"""Sizes of the pixels that a run was trained on, in its table and in words."""

from __future__ import annotations

from pathlib import Path

import pytest

from tfbig import SourceError
from tfbig.results import pixel_sizes


def test_in_words() -> None:
    assert pixel_sizes.in_um([(0.5, 0.5)]) == "0.5 um"
    assert pixel_sizes.in_um([(0.5, 0.25), (0.25, 0.25), (0.4, 0.4)]) == "0.25 um to 0.5 x 0.25 um"


def test_pixels_of_a_run(tmp_path: Path) -> None:
    assert pixel_sizes.trained_pixels(tmp_path) == ()
    table = "slide_id,label,split,path,mpp_rows,mpp_columns\n"
    rows = "a,0,train,a.tif,0.5,0.25\nb,1,val,b.tif,,\nc,1,test,c.tif,0.5,0.25\n"
    (tmp_path / "slides.csv").write_text(table + rows)
    assert pixel_sizes.trained_pixels(tmp_path) == ((0.5, 0.25),)
    (tmp_path / "slides.csv").write_text("slide_id,label\na,0\n")
    assert pixel_sizes.trained_pixels(tmp_path) == ()
    for table in ("scene,label,split\na.tif,b.tif,train\n", "case_id,split,image\na,train,a.nii\n"):
        (tmp_path / "slides.csv").write_text(table)  # of a run on scenes or volumes
        assert pixel_sizes.trained_pixels(tmp_path) == ()
    (tmp_path / "slides.csv").write_text("slide_id,split,mpp_rows,mpp_columns\na,train,x,0.5\n")
    with pytest.raises(SourceError, match="is damaged: expected numbers in mpp_rows and mpp_col"):
        pixel_sizes.trained_pixels(tmp_path)
