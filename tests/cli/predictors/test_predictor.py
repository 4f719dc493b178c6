"""What the predictors share: an input is done when its row is written."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from tfbig.cli import predictors
from tfbig.cli.input_kinds import BAGS, SCENES, SLIDES, VOLUMES
from tfbig.cli.predictors.predictor import Predictor

KINDS = {
    predictors.Bags: SLIDES,
    predictors.Features: BAGS,
    predictors.Images: SLIDES,
    predictors.Instances: SLIDES,
    predictors.Masks: SLIDES,
    predictors.Scenes: SCENES,
    predictors.Volumes: VOLUMES,
}


class Darkness(Predictor):
    """Writes a row, as a network would."""

    def predict(self, path: Path, slide: Any) -> str:
        self.write_row({self.row: path.name, "darkness": 1})
        return path.name


def test_a_row_means_that_an_input_is_done(tmp_path: Path) -> None:
    settings: Any = Namespace(out=str(tmp_path))
    predictor = Darkness(settings)
    assert not predictor.finished(Path("a.tif"))
    predictor.predict(Path("a.tif"), None)
    assert predictor.finished(Path("a.tif")) and not predictor.finished(Path("b.tif"))
    assert predictor.pixels == {}


@pytest.mark.parametrize(("predictor", "kind"), KINDS.items())
def test_what_each_predicts(predictor: type[Predictor], kind: Any) -> None:
    assert predictor.inputs is kind
    assert predictor.row == kind.name[:-1]
