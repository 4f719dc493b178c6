"""Files of YAML of plain values: small, and without aliases, which let a few lines stand for gigabytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from yaml.composer import Composer
from yaml.constructor import ConstructorError, SafeConstructor
from yaml.cyaml import CParser  # type: ignore[attr-defined]
from yaml.resolver import Resolver

from tfbig.errors import SourceError, reason_of
from tfbig.units import format_bytes

MAX_BYTES = 2**21
"""Largest accepted file: some 20,000 paths of slides. Worse values take 13 s."""
_MAX_DIGITS = 64


def read_yaml(path: str | Path) -> Any:
    """Return the value of a file of YAML.

    Args:
        path: The file.

    Raises:
        SourceError: There is no such file, or it is too large, or not YAML of plain values.
    """
    path = Path(path)
    if not path.is_file():
        raise SourceError(f"{path}: is not a file; expected one of YAML.")
    size = path.stat().st_size
    if size > MAX_BYTES:
        raise SourceError(
            f"{path}: has {format_bytes(size)}; settings have at most {format_bytes(MAX_BYTES)}. Put long lists, such "
            "as those of slides, into a table or a folder."
        )
    try:
        return load_yaml(path.read_text(encoding="utf-8"))
    except Exception as error:  # of the system, of YAML, or of a value that is not what it says
        raise SourceError(
            f"{path}: is not YAML: {reason_of(error)}. Restore or correct it."
        ) from error


def load_yaml(text: str) -> Any:
    """Return the value of a YAML document of plain values.

    Args:
        text: The document.

    Raises:
        yaml.YAMLError: The text is not YAML, or has an alias or an object.
        Exception: A value is not of the type that it declares.
    """
    return yaml.load(text, _Loader)  # type: ignore[arg-type]


class _Loader(Composer, CParser, SafeConstructor, Resolver):  # type: ignore[misc]
    """Loader that reads in C, and makes the values in Python.

    Args:
        text: The document.
    """

    def __init__(self, text: str) -> None:
        CParser.__init__(self, text)
        for part in (Composer, SafeConstructor, Resolver):
            part.__init__(self)

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            event: Any = self.peek_event()
            raise yaml.composer.ComposerError(
                None, None, f"alias '{event.anchor}' is not supported", event.start_mark
            )
        return super().compose_node(parent, index)

    def construct_scalar(self, node: Any) -> Any:
        """Return the text of a value; that of a number is short, since `1:1:1` takes the square of its length."""
        if not node.tag.endswith((":int", ":float")) or len(node.value) <= _MAX_DIGITS:
            return super().construct_scalar(node)
        raise ConstructorError(
            None, None, f"a number of {len(node.value)} characters", node.start_mark
        )
