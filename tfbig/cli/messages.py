"""Errors of the library in the words of the command line: flags for arguments of Python."""

from __future__ import annotations

import re

from tfbig.errors import Advice, SourceError
from tfbig.units import counted

_ADVICE = {
    Advice.PIXEL_SIZE: "Use --slide-mpp {mpp}, or --mpp-of FILE, a CSV with columns wsi,mpp, or --level 0 instead of "
    "--mpp.",
    Advice.STORED_PIXELS: "Use --level 0 for the pixels as they are, or resample the slide.",
    Advice.PLANE: "Use --z 0, or another plane up to {last}, or --z max for the largest value at each pixel.",
    Advice.CLASSES: "Name those that count with --outline-classes NAME.",
}
"""What to do about an error of a file, by flags."""
_FLAGS = (
    (r"Budget\(scratch=\.\.\.\)", "--scratch"),
    (r"Budget\(disk=\.\.\.\)", "--disk"),
    (r"`device`( of the Budget)?", "--device-memory"),
    (r"`host`( of the Budget)?", "--host-memory"),
    (r"`disk`", "--disk"),
    (r", pad the image \(tfbig\.sources\.Padded\), or exclude it", ", or leave the slide out"),
)
"""Patterns of what errors of budgets and devices call arguments of Python, and what the command line calls these."""
_PRECISION = r" or --precision mixed_\1"
_STORES = {"plan": r" or --store \1", "train": _PRECISION, "evaluate": _PRECISION}
"""What replaces `store=`, by command; a prediction has the precision of its model."""
LEAST_AGREEMENT = 0.9
"""Agreement of two methods from which on the tissue of a slide counts as certain."""
LOOK = "make tiles with tfbig tile, look at its pictures, and use them with --coords"
"""Advice on uncertain tissue for commands that make their tiles themselves."""


def in_flags(error: Exception, command: str) -> str:
    """The text of an error, with flags of a command in place of arguments of Python."""
    text = str(error)
    if isinstance(error, SourceError) and error.advice:
        text = f"{error.problem} {_ADVICE[error.advice].format(**error.values)}"
    for pattern, flag in (*_FLAGS, (r" or store='(\w+)'", _STORES.get(command, ""))):
        text = re.sub(pattern, flag, text)
    return text


def other_channels(found: int, expected: int) -> str:
    """Say what to do about images of other channels than those that a network was trained on."""
    if (found, expected) == (1, 3):
        return "Save the image in RGB, with the gray values in all three channels, or use a network for gray images."
    if found > expected:
        return f"Choose {counted(expected, 'channel')} with --channels."
    return f"Use images of {counted(expected, 'channel')}, or a network for {found}."


def uncertain_tissue(agreement: float, advice: str) -> str:
    """Warn if two methods find different tissue on a slide; empty if they agree.

    `agreement` is `Tissue.agreement`; `advice` says what to do.
    """
    if agreement >= LEAST_AGREEMENT:
        return ""
    return f"(uncertain: --tissue colour and otsu agree by {agreement:.0%} only; {advice})"
