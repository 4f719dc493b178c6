"""Settings of `tfbig features`."""

from __future__ import annotations

from dataclasses import dataclass

from tfbig.cli.settings import choices
from tfbig.cli.settings import value_types as types
from tfbig.cli.settings.data_settings import EdgeSettings, TileSettings
from tfbig.cli.settings.flag import DECIDES_RESULT, ENVIRONMENT, THIS_START, flag
from tfbig.cli.settings.reader_settings import ReaderSettings
from tfbig.cli.settings.slide_settings import SlideSettings
from tfbig.cli.settings.training_settings import EncoderWeights


@dataclass(frozen=True, kw_only=True)
class EncoderSettings(EncoderWeights):
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
        kind=THIS_START,
        help="print every encoder with the number of its features, its tiles, parameters and licence, and where its "
        "weights are had, and stop",
    )
    weights_sha256: str | None = flag(
        type=types.sha256,
        metavar="HEX",
        help="refuse weights whose file has another SHA-256; the settings in --out have that of the weights that were "
        "used (default: use any)",
    )
    precision: str = flag(
        "float32",
        choices=["float32", "mixed_float16", "mixed_bfloat16"],
        help="dtype policy of the encoder; features are stored in float32",
    )
    batch_size: int = flag(
        32,
        kind=ENVIRONMENT,
        type=types.count,
        help="number of tiles that are encoded together; fewer need less memory",
    )


@dataclass(frozen=True, kw_only=True)
class EncodedTileSettings(TileSettings, EdgeSettings, ReaderSettings):
    """Tiles that are encoded, chosen as in training."""

    SECTION = "data"

    tile: int | None = flag(
        None,
        help="rows and columns of a tile, in pixels; an encoder of pathology gets tiles of another size than its own "
        "resized to it (default: that of --coords, else of the encoder, 256 for ResNets and MobileNet)",
    )
    coords: str | None = flag(
        kind=DECIDES_RESULT,
        exists="folder",
        path=True,
        metavar="FOLDER",
        help="folder with SLIDE.h5 of tfbig tile, CLAM or TRIDENT (default: find tiles as tfbig tile does)",
    )
    overlap: int = flag(
        0, type=types.count_from_zero, help="pixels that neighbouring tiles share (default: 0)"
    )
    mpp: float | None = flag(help="resolution of tiles in micrometres per pixel")
    level: int | None = flag(
        help="resolution as a pyramid level instead, 0 is the finest (default: that of --coords, else --mpp of the "
        "encoder, 0.5)"
    )


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
