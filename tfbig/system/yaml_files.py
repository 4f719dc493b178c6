"""YAML without aliases, which let a few lines stand for gigabytes."""

from __future__ import annotations

from typing import Any

import yaml


def load_yaml(text: str) -> Any:
    """Return the value of a YAML document of plain values.

    Args:
        text: The document.

    Raises:
        yaml.YAMLError: The text is not YAML, or has an alias or an object.
    """
    return yaml.load(text, _Loader)


class _Loader(yaml.SafeLoader):
    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()
            raise yaml.composer.ComposerError(
                None, None, f"alias '{event.anchor}' is not supported", event.start_mark
            )
        return super().compose_node(parent, index)
