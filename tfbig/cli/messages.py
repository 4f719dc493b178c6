"""Errors of the library in the words of the command line: flags for arguments of Python."""

from __future__ import annotations

import re

_FLAGS = (
    (
        r"Pass mpp=([0-9.]+) to open_slide\.",
        r"Use --slide-mpp \1, or --mpp-of FILE, a CSV with columns wsi,mpp, or --level 0 instead of --mpp.",
    ),
    (
        r"Pass z=0, or another plane up to (\d+), or z='max' for (.*) to open_slide\.",
        r"Use --z 0, or another plane up to \1, or --z max for \2.",
    ),
    (
        r"Pass classes=\('NAME', \.\.\.\) of OutlineRule: the names of the classes that count\.",
        "Name those that count with --outline-classes NAME.",
    ),
    (r"Pass level=0 to use the pixels", "Use --level 0 for the pixels"),
    (r"Budget\(scratch=\.\.\.\)", "--scratch"),
    (r"Budget\(disk=\.\.\.\)", "--disk"),
    (r"`device`( of the Budget)?", "--device-memory"),
    (r"`host`( of the Budget)?", "--host-memory"),
    (r"`disk`", "--disk"),
    (r"--devices: devices=", "--devices "),
    (r", pad the image \(tfbig\.sources\.Padded\), or exclude it", ", or leave the slide out"),
)
"""Patterns of what the library calls its arguments, and what they are in the command line."""
_PRECISION = r" or --precision mixed_\1"
_STORES = {"plan": r" or --store \1", "train": _PRECISION, "evaluate": _PRECISION}
"""What replaces `store=`, by command; a prediction has the precision of its model."""
LEAST_AGREEMENT = 0.9
"""Agreement of two methods from which on the tissue of a slide counts as certain."""
LOOK = "make tiles with tfbig tile, look at its pictures, and use them with --coords"
"""Advice on uncertain tissue for commands that make their tiles themselves."""


def in_flags(error: Exception, command: str) -> str:
    """Return the text of an error, with flags in place of arguments of Python.

    Args:
        error: The error.
        command: Name of the command.
    """
    text = str(error)
    for pattern, flag in (*_FLAGS, (r" or store='(\w+)'", _STORES.get(command, ""))):
        text = re.sub(pattern, flag, text)
    return text


def uncertain_tissue(agreement: float, advice: str) -> str:
    """Warn if two methods find different tissue on a slide; empty if they agree.

    `agreement` is `Tissue.agreement`; `advice` says what to do.
    """
    if agreement >= LEAST_AGREEMENT:
        return ""
    return f"(uncertain: --tissue colour and otsu agree by {agreement:.0%} only; {advice})"
