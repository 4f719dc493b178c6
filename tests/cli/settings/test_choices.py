"""Names that flags offer are those of the modules that define what they mean."""

from __future__ import annotations

import tfbig
from tfbig import mil, patchgd
from tfbig.cli.settings import choices, request
from tfbig.cli.tasks import fitting
from tfbig.cli.tasks.mil import AGGREGATORS
from tfbig.models import clam, dtfd, encoders, gigapixel_unet, latent, pathology_encoders
from tfbig.patchgd import patch_sampling
from tfbig.results import report, run_folder
from tfbig.sources.volumes import grid
from tfbig.tissue import masks, outline_file


def test_names() -> None:
    assert tuple(AGGREGATORS) == choices.AGGREGATORS
    assert tuple(fitting.OPTIMIZERS) == choices.OPTIMIZERS
    assert choices.DISTILLATIONS == dtfd.DISTILLATIONS
    assert choices.INSTANCE_LOSSES == clam.INSTANCE_LOSSES
    assert choices.NORMS == mil.NORMS
    assert choices.FILLINGS == patchgd.FILLINGS
    assert (choices.SAMPLERS, choices.SCALES) == (patch_sampling.SAMPLERS, patch_sampling.SCALES)
    assert choices.HEADS == latent.HEADS
    assert tuple(masks.METHODS) == choices.TISSUE_METHODS
    assert outline_file.ORIGINS == choices.ORIGINS
    assert set(choices.TISSUE_METHODS) < set(choices.TISSUE)
    assert tuple(
        tuple(names) for names in (encoders.TRUNKS, encoders.RESNETS, encoders.NETWORKS)
    ) == (choices.TRUNKS, choices.RESNETS, choices.NETWORKS)
    assert tuple(pathology_encoders.PATHOLOGY_ENCODERS) == choices.PATHOLOGY_ENCODERS
    assert {*choices.FEATURE_ENCODERS} < {*encoders.NETWORKS, *choices.PATHOLOGY_ENCODERS}
    assert choices.DIRECTIONS == grid.WORLD


def test_numbers_and_files() -> None:
    assert choices.UNET_STRIDE == gigapixel_unet.STRIDE
    assert choices.MAX_VIEWS == report.MAX_VIEWS
    assert choices.CONFIG == run_folder.CONFIG
    assert tfbig.__version__ == request.VERSION
