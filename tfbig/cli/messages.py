"""Errors of the library in the words of the command line: flags for arguments of Python."""

from __future__ import annotations

import re

_FLAGS = (
    (
        r"Pass mpp=([0-9.]+) to open_slide\.",
        r"Use --slide-mpp \1, or --mpp-of FILE, a CSV with columns wsi,mpp.",
    ),
    (r"Budget\(scratch=\.\.\.\)", "--scratch"),
    (r"Budget\(disk=\.\.\.\)", "--disk"),
    (r"`device`( of the Budget)?", "--device-memory"),
    (r"`host`( of the Budget)?", "--host-memory"),
    (r"`disk`", "--disk"),
    (r"--devices: devices=", "--devices "),
)
"""Patterns of what the library calls its arguments, and what they are in the command line."""
_PRECISION = r" or --precision mixed_\1"
_STORES = {"plan": r" or --store \1", "train": _PRECISION, "evaluate": _PRECISION}
"""What stands for `store=`, by command; a prediction has the precision of its model."""


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
