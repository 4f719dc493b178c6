"""Stain normalisation of a run: of slides only, and the same in predictions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from cli_runs import SLIDE_BAGS, predictions

import train
from tfbig import open_slide
from tfbig.cli.data import cohort, stain
from tfbig.cli.main import main
from tfbig.cli.settings.tasks import ImageSettings


def test_images_of_a_run(cohort_table: Path) -> None:
    """Whole images of a slide are normalised by its tissue, whatever the resolution."""
    path = next(cohort_table.parent.rglob("s4.tif"))
    images = {}
    for name in ("none", "reinhard"):
        settings = ImageSettings(stain=name, mpp=1.0)
        image = cohort.Opener(settings).image(path)
        images[name] = image.read(0, image.shape[0])
    slide = open_slide(path)
    view = stain.normalised(slide.at(mpp=1.0), slide, "reinhard")
    np.testing.assert_array_equal(images["reinhard"], view.read(0, view.shape[0]))
    assert (images["none"] != images["reinhard"]).any()
    image = slide.at(mpp=1.0)
    assert stain.normalised(image, slide, "none") is image


@pytest.mark.slow
@pytest.mark.parametrize("method", ["macenko", "reinhard"])
def test_run_and_predictions(method: str, cohort_table: Path, tmp_path: Path) -> None:
    """A slide of the test split has the same probabilities in the evaluation, and by `tfbig predict`."""
    flags = [*SLIDE_BAGS, "--data", str(cohort_table), "--folds", "3", "--fold", "0"]
    flags += ["--stain", method, "--stain-jitter", "0.05", "--hidden", "8"]
    out, again = tmp_path / "out", tmp_path / "again"
    code = train.main([*flags, "--out", str(out)])
    if method == "macenko" and code != 3:
        pytest.skip("slides of one stain")
    assert code == 3
    assert train.main([*flags, "--test-only", str(out), "--out", str(again)]) == 0
    assert predictions(again) == predictions(out)
    evaluated = {row["bag"]: row for row in predictions(out)}
    name = next(iter(evaluated))
    slide = next(cohort_table.parent.rglob(f"{name}.tif"))
    assert main(["predict", str(out), str(slide), "--out", str(tmp_path / "predicted")]) == 0
    (row,) = predictions(tmp_path / "predicted")
    for key in ("probability_purple", "probability_red"):
        assert float(row[key]) == pytest.approx(float(evaluated[name][key]), abs=2e-4)
