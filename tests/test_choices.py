"""Everything that a flag offers by name is there."""

from __future__ import annotations

from tfbig import choices
from tfbig.cli.settings.choices import AGGREGATORS, OPTIMIZERS
from tfbig.cli.tasks import fitting, mil
from tfbig.models import encoders, latent, pathology_encoders


def test_builders_have_the_names_of_choices() -> None:
    assert tuple(mil.AGGREGATORS) == AGGREGATORS
    assert tuple(fitting.OPTIMIZERS) == OPTIMIZERS
    assert tuple(encoders.TRUNKS) == choices.TRUNKS
    assert tuple(encoders.RESNETS) == choices.RESNETS
    assert tuple(encoders.NETWORKS) == choices.NETWORKS
    assert tuple(pathology_encoders.PATHOLOGY_ENCODERS) == choices.PATHOLOGY_ENCODERS
    assert latent.BLOCKS.keys() < {*choices.HEADS}
