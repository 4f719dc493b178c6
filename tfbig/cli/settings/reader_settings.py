"""Settings of how slides are read: reader, size of pixels and resolution."""

from __future__ import annotations

from dataclasses import dataclass

from tfbig.cli.settings import choices
from tfbig.cli.settings import value_types as types
from tfbig.cli.settings.flag import ENVIRONMENT, flag


@dataclass(frozen=True, kw_only=True)
class ReaderSettings:
    """Resolution and reader of slides, and what their files do not say."""

    SECTION = "slides"

    mpp: float | None = flag(
        type=types.positive, help="resolution of slides in micrometres per pixel"
    )
    magnification: float | None = flag(
        type=types.positive, help="resolution as a magnification instead, e.g. 20"
    )
    level: int | None = flag(
        type=types.count_from_zero,
        help="resolution as a pyramid level instead, 0 is the finest (default: 0)",
    )
    mpp_of: str | None = flag(
        exists="file",
        kind=ENVIRONMENT,
        path=True,
        metavar="FILE",
        help="CSV file with columns wsi,mpp: file names of slides without a pixel size, and their micrometres per "
        "pixel at level 0",
    )
    slide_mpp: float | None = flag(
        kind=ENVIRONMENT,
        type=types.positive,
        metavar="MPP",
        help="micrometres per pixel at level 0 of slides whose files do not say it; --mpp-of wins for the slides that "
        "it names",
    )
    reader: str | None = flag(
        kind=ENVIRONMENT,
        choices=choices.READERS,
        help="library that reads the slides (default: by format)",
    )
