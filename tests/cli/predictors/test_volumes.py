"""How the network of a run reads volumes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tfbig.cli.predictors import volumes
from tfbig.cli.settings import request


@pytest.mark.parametrize("strides", [None, ["1x2x2", "2x2x2"]])
def test_preparation_of_a_run(strides: list[str] | None, tmp_path) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "a.nii").touch()
    argv = ["predict", str(tmp_path), str(tmp_path / "a.nii"), "--out", str(tmp_path / "out")]
    settings = request.parse(argv).settings
    config = {
        "task": "volume-segmentation",
        "stage_filters": [4, 8, 8],
        "strides": strides,
        "spacing": [3, 1, 1],
        "intensity_window": [-100, 200],
        "orientation": "SAR",
    }
    found = volumes.preparation_of(config, settings)
    assert found.stride == ((4, 4, 4) if strides is None else (2, 4, 4))
    assert (found.orientation, found.spacing, found.window) == ("SAR", (3, 1, 1), (-100, 200))
    assert volumes.preparation_of({}, settings).stride == (32, 32, 32)
    stored = request.parse([*argv, "--orientation", "stored"]).settings
    assert volumes.preparation_of(config, stored) == replace(found, orientation="stored")
