"""The list of encoders agrees with the networks."""

from __future__ import annotations

import pytest

from tfbig.cli.data import encoder_list
from tfbig.cli.data.tile_selection import TILE
from tfbig.cli.settings import choices
from tfbig.models import encoders
from tfbig.models.pathology_encoders import PATHOLOGY_ENCODERS

ROWS = {row.name: row for row in encoder_list.rows()}


def test_every_encoder_has_a_row() -> None:
    assert tuple(ROWS) == choices.FEATURE_ENCODERS
    assert ROWS["resnet18_gn"].weights == ROWS["resnet18_gn"].licence == ""
    assert all(row.weights and row.licence for row in ROWS.values() if row.name != "resnet18_gn")


@pytest.mark.parametrize(
    "name",
    [
        "resnet18",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ROWS
            if name not in ("resnet18", *PATHOLOGY_ENCODERS)
        ),
    ],
)
def test_networks_of_imagenet(name: str) -> None:
    """The encoders of pathology are compared in `models/test_pathology_encoders.py`."""
    model = encoders.make(name, (TILE, TILE, 3))
    assert (model.output_shape[-1], model.count_params()) == (
        ROWS[name].width,
        ROWS[name].parameters,
    )


def test_lines() -> None:
    head, *lines = encoder_list.lines()
    assert head.split()[:4] == ["encoder", "features", "tile", "um/px"]
    line = next(line for line in lines if line.startswith("conch-1.5 "))
    for value in ("768", "448", "0.5", "306.1 M", "0.485 0.456 0.406", "MahmoodLab/conchv1_5"):
        assert value in line
    assert len(lines) == len(choices.FEATURE_ENCODERS) + 2


def test_summary() -> None:
    assert encoder_list.summary().startswith("encoders for tfbig features: 17; ")
