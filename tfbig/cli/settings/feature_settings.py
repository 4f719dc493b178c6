"""Settings of `tfbig features`."""

from __future__ import annotations

from dataclasses import dataclass

from tfbig.cli.settings import choices
from tfbig.cli.settings import value_types as types
from tfbig.cli.settings.data_settings import TileSettings
from tfbig.cli.settings.flag import PLACE, RESULT, SESSION, flag
from tfbig.cli.settings.slide_settings import (
    ResolutionSettings,
    SlideSettings,
    level_flag,
    mpp_flag,
)
from tfbig.cli.settings.training_settings import channels_flag, encoder_weights_flag

_OWN = "a ResNet or MobileNet, and for an encoder of pathology, which has its own"


@dataclass(frozen=True, kw_only=True)
class EncoderSettings:
    """The encoder of tiles."""

    SECTION = "encoder"

    encoder: str = flag(
        "",
        choices=choices.FEATURE_ENCODERS,
        metavar="NAME",
        help="network of a tile, one of " + ", ".join(choices.FEATURE_ENCODERS),
    )
    list: bool = flag(
        False,
        kind=SESSION,
        help="print every encoder with the number of its features, its tiles, parameters and licence, and where its "
        "weights are had, and stop",
    )
    encoder_weights: str | None = encoder_weights_flag()
    weights_sha256: str | None = flag(
        type=types.sha256,
        metavar="HEX",
        help="refuse weights whose file has another SHA-256; the settings in --out have that of the weights that were "
        "used (default: use any)",
    )
    mean: float | tuple[float, ...] | None = channels_flag(0.0, "mean", _OWN)
    std: float | tuple[float, ...] | None = channels_flag(1.0, "standard deviation", _OWN)
    precision: str = flag(
        "float32",
        choices=["float32", "mixed_float16", "mixed_bfloat16"],
        help="dtype policy of the encoder; features are stored in float32",
    )
    batch_size: int = flag(
        32,
        kind=PLACE,
        type=types.count,
        help="number of tiles that are encoded together; fewer need less memory",
    )


@dataclass(frozen=True, kw_only=True)
class EncodedTileSettings(TileSettings, ResolutionSettings):
    """Tiles that are encoded, chosen as in training."""

    SECTION = "data"

    tile: int | None = flag(
        None,
        help="rows and columns of a tile, in pixels; an encoder of pathology gets tiles of another size than its own "
        "resized to it (default: that of --coords, else of the encoder, 256 for ResNets and MobileNet)",
    )
    coords: str | None = flag(
        kind=RESULT,
        exists="folder",
        path=True,
        metavar="FOLDER",
        help="folder with SLIDE.h5 of tfbig tile, CLAM or TRIDENT (default: find tiles as tfbig tile does)",
    )
    overlap: int = flag(
        0, type=types.count_from_zero, help="pixels that neighbouring tiles share (default: 0)"
    )
    mpp: float | None = mpp_flag("tiles")
    level: int | None = level_flag("that of --coords, else --mpp of the encoder, 0.5")


@dataclass(frozen=True, kw_only=True)
class FeaturesSettings(SlideSettings, EncoderSettings, EncodedTileSettings):
    """Settings of `tfbig features`."""

    slides: tuple[str, ...] = flag(
        (),
        help="slides, folders of slides, or tables of slides, *.csv with a column slide_id and optional path, label, "
        "case_id and split, which features.csv gets too",
        nargs="*",
    )
    out: str = ""
