"""Choice of channels and of a plane along z."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias

from tfbig.errors import Advice, SourceError

MAX: Final = "max"
"""Maximum projection: at each pixel the largest value of all planes."""
Plane: TypeAlias = int | str | None
"""Number of a plane along z, counted from 0, or 'max'; None if there is only one."""


def chosen_planes(plane: Plane, count: int, name: str) -> range:
    """Choose the planes of which each pixel is the maximum: one plane, or for a projection all.

    `count` is the number of planes; `name` is for error messages.

    Raises:
        SourceError: There are several planes and none is chosen, or there is no such plane.
    """
    if plane is None and count == 1:
        return range(1)
    if plane == MAX:
        return range(count)
    if isinstance(plane, int) and 0 <= plane < count:
        return range(plane, plane + 1)
    if plane is None:
        raise SourceError(
            f"{name}: is a stack of {count} planes along z; expected one image.",
            Advice.PLANE,
            last=count - 1,
        )
    raise SourceError(
        f"{name}: plane {plane!r} along z requested; it has {count}, counted from 0. Use one of these, or 'max'."
    )


def chosen_channels(
    channels: Sequence[int | str], names: Sequence[str], count: int, name: str
) -> tuple[int, ...]:
    """Find the numbers, counted from 0, of channels given by number or name.

    A name is compared without its case; the beginning of one is enough if no other begins so. `names` are those of
    all channels, if they have any.

    Raises:
        SourceError: There is no such channel, a name fits several, or a channel is repeated.
    """
    found = tuple(_index(channel, names, count) for channel in channels)
    if found and len(set(found)) == len(found) and None not in found:
        return tuple(index for index in found if index is not None)
    listed = ", ".join(
        f"{number} '{names[number]}'" if number < len(names) else str(number)
        for number in range(min(count, 50))
    )
    raise SourceError(
        f"{name}: channels {', '.join(map(str, channels)) or 'none'} requested; it has {listed}. Choose among these, "
        "each once."
    )


def _index(channel: int | str, names: Sequence[str], count: int) -> int | None:
    if isinstance(channel, int):
        return channel if 0 <= channel < count else None
    wanted, folded = channel.casefold(), [each.casefold() for each in names]
    exact = [index for index, each in enumerate(folded) if each == wanted]
    fitting = exact or [index for index, each in enumerate(folded) if each.startswith(wanted)]
    if len(fitting) == 1:
        return fitting[0]
    return int(channel) if not fitting and channel.isdecimal() and int(channel) < count else None
