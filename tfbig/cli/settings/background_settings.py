"""Settings of the background of slides: whether it is computed, and where it is."""

from __future__ import annotations

from dataclasses import dataclass

from tfbig.choices import ORIGINS, TISSUE_METHODS
from tfbig.cli.settings import choices
from tfbig.cli.settings import value_types as types
from tfbig.cli.settings.flag import flag


@dataclass(frozen=True, kw_only=True)
class OutlineSettings:
    """Outlines of tissue in files."""

    SECTION = "background"

    outline_classes: tuple[str, ...] | None = flag(
        nargs="+",
        metavar="NAME",
        help="classes of outlines in GeoJSON that count, as QuPath names them; Ignore* never counts (default: the one "
        "class of the file, else outlines without a class)",
    )
    outline_origin: str | None = flag(
        choices=ORIGINS,
        help="where outlines in GeoJSON are counted from, those that are read and those that are written. scanned: the "
        "corner of the scanned area, as in QuPath, for MRXS, SCN, BIF and others that say it; level-0: the corner of "
        "level 0 (default: of the run, else scanned)",
    )


@dataclass(frozen=True, kw_only=True)
class BackgroundSettings(OutlineSettings):
    """Background of slides that go through the network whole, or in crops."""

    SECTION = "background"

    background: str | None = flag(
        choices=choices.BACKGROUNDS,
        help="skip: give the background of slides one colour, and compute one piece of it, which changes no result on "
        "these images; compute: use slides as they are (default: skip with --tissue, --leave-out or --dilation, else "
        "compute)",
    )
    tissue: str | None = flag(
        type=types.tissue_or_masks,
        path=True,
        not_paths=TISSUE_METHODS,
        metavar="METHOD|FILE|FOLDER",
        help="what is not background: tissue, found as in tfbig tile by colour, otsu or grey; or a FOLDER of masks, "
        "SLIDE.geojson with outlines or an image SLIDE.png, SLIDE.tif or SLIDE.npy of the same shape that is not 0 "
        "where tissue is; or the FILE of one slide (default: colour)",
    )
    leave_out: tuple[float, ...] | None = flag(
        nargs="+",
        type=float,
        metavar="VALUE",
        help="the background is where slides have exactly this colour, one number or one for each channel, such as "
        "255; instead of --tissue; no pixel changes",
    )
    dilation: float | None = flag(
        type=types.from_zero,
        metavar="UM",
        help="micrometres around the tissue that are no background (default: 0)",
    )
