"""Settings of images in fluorescence: channels, planes, and their range of intensities."""

from __future__ import annotations

from dataclasses import dataclass

from tfbig.cli.settings import value_types as types
from tfbig.cli.settings.flag import flag


@dataclass(frozen=True, kw_only=True)
class ChannelSettings:
    """Channels and planes of slides, and how they become 8 bits."""

    channels: tuple[str, ...] | None = flag(
        nargs="+",
        metavar="NAME|N",
        help="channels of the slides, by name or by number from 0, such as DAPI (default: all)",
    )
    z: int | str | None = flag(
        type=types.plane,
        metavar="N|max",
        help="plane of a stack, from 0, or max for the largest value of all planes at each pixel (default: slides have "
        "one plane)",
    )
    percentiles: tuple[float, ...] | None = flag(
        nargs=2,
        type=types.from_zero,
        metavar=("LOW", "HIGH"),
        help="percentiles of each channel of a slide that become 0 and 255, such as 1 99.8, for 16 bits (default: "
        "values as they are, which must have 8 bits)",
    )
