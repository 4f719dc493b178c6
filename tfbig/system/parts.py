"""Configs of layers and models that contain other models."""

from __future__ import annotations

from typing import Any

import keras


class WithParts:
    """Mixin, before Keras' class, for layers and models whose first arguments are models or layers.

    Attributes:
        PARTS: Names of these arguments, in their order, and of the attributes with their values.
    """

    PARTS: tuple[str, ...] = ()

    def parts_config(self) -> dict[str, Any]:
        """Return the serialised parts, for `get_config`."""
        return {n: keras.saving.serialize_keras_object(getattr(self, n)) for n in self.PARTS}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Any:
        """Create a layer or model from its config."""
        options = dict(config)
        parts = [
            keras.saving.deserialize_keras_object(options.pop(name), custom_objects)
            for name in cls.PARTS
        ]
        return cls(*parts, **options)
