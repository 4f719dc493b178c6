"""Networks and losses by name, and flags that do not fit."""

from __future__ import annotations

import re

import numpy as np
import pytest

import train
from tfbig.cli.paths import FlagError
from tfbig.cli.tasks import volume_networks, volume_segmentation
from tfbig.losses import DiceCrossentropy


def settings(*flags: str):  # type: ignore[no-untyped-def]
    return train.settings_of(["--task", "volume-segmentation", *flags])


def test_unet3d() -> None:
    chosen = settings("--stage-filters", "4", "8", "--strides", "1x2x2")
    model = volume_networks.make(chosen, 3, 2)
    assert model.input_shape == (None, None, None, None, 2)
    assert model(np.zeros((1, 3, 4, 6, 2), "float32")).shape == (1, 3, 4, 6, 3)


def test_losses() -> None:
    assert isinstance(volume_networks.loss(settings()), DiceCrossentropy)
    assert volume_networks.loss(settings("--loss", "crossentropy")).name.startswith("sparse")


WRONG = {
    "--stage-filters 4": "1 stage; expected two or more",
    "--stage-filters 4 8 --strides 2 2": "2 strides; expected 1, one for each of --stage-filters but the first",
    "--stage-filters 4 8 8 --crop 6x8x8": r"must be multiples of 4x4x4, .* Use --crop 8x8x8",
}


@pytest.mark.parametrize("flags", WRONG)
def test_flags_that_do_not_fit(flags: str) -> None:
    with pytest.raises(FlagError, match=WRONG[flags]):
        volume_segmentation.VolumeSegmentation().load(settings(*flags.split()))


@pytest.mark.parametrize(
    ("flag", "text", "message"),
    [
        ("--crop", "96x96", "is not planes x rows x columns, e.g. 96x96x96, or whole"),
        ("--crop", "0x8x8", "all must be at least 1"),
        ("--strides", "1x2", "is not a stride along planes, rows and columns"),
        ("--orientation", "SAX", "is not stored, nor three letters"),
    ],
)
def test_flags_that_are_nothing(flag: str, text: str, message: str) -> None:
    with pytest.raises(FlagError, match=re.escape(message)):
        settings(flag, text)
