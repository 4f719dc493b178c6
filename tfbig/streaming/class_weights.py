"""`class_weight` of masks: the weight of a pixel is the weight of its class.

Keras fails for masks in arrays and, in a `tf.data.Dataset`, takes the columns of masks `[N, H, W]` for classes.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from math import floor
from typing import Any

import keras
import tensorflow as tf


class ClassWeights:
    """Mixin, placed before the Keras class, that accepts `class_weight` with masks as labels."""

    name: str
    _functional_twin: Any

    def fit(self, *arguments: Any, **options: Any) -> Any:
        """Train as `keras.Model.fit`; with `class_weight`, each pixel of a mask has the weight of its class."""
        if options.get("class_weight") is None and len(arguments) <= _CLASS_WEIGHT:
            return super().fit(*arguments, **options)  # type: ignore[misc]
        named = inspect.signature(keras.Model.fit).bind(self, *arguments, **options).arguments
        named.pop("self")
        if self._has_mask and named.get("sample_weight") is None:
            named = self._weighted(named)
        return super().fit(**named)  # type: ignore[misc]

    def train_on_batch(
        self,
        x: Any,
        y: Any = None,
        sample_weight: Any = None,
        class_weight: Any = None,
        return_dict: bool = False,
    ) -> Any:
        """Train as `keras.Model.train_on_batch`; with `class_weight`, each pixel of a mask has that of its class."""
        if self._is_mask(y) and class_weight is not None and sample_weight is None:
            sample_weight, class_weight = self._weights_of_pixels(y, class_weight), None
        return super().train_on_batch(x, y, sample_weight, class_weight, return_dict)  # type: ignore[misc]

    @property
    def _has_mask(self) -> bool:
        """True if the only output is an image."""
        outputs = self._functional_twin.outputs
        return len(outputs) == 1 and len(outputs[0].shape) > 2

    def _is_mask(self, y: Any) -> bool:
        """Return whether labels are one mask, the only output."""
        return self._has_mask and y is not None and not keras.tree.is_nested(y)

    def _weighted(self, named: dict[str, Any]) -> dict[str, Any]:
        """Return arguments of `fit` with the weights of the pixels instead of those of the classes."""
        x, class_weight = named["x"], named["class_weight"]
        if self._is_mask(named.get("y")):
            weights = self._weights_of_pixels(named["y"], class_weight)
            first = floor(len(weights) * (1 - (named.get("validation_split") or 0.0)))
            ones = tf.ones_like(weights[first:])  # class weights are not for validation
            named |= {"sample_weight": tf.concat([weights[:first], ones], 0).numpy()}
        elif isinstance(x, tf.data.Dataset):

            def weighted(*data: Any) -> Any:
                images, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
                if sample_weight is not None or not self._is_mask(y):
                    found = "other labels" if sample_weight is None else "sample weights too"
                    raise ValueError(
                        f"'{self.name}': class_weight needs a dataset of (x, y) with one mask, received {found}; "
                        "expected one of the two. Pass the sample weights [N, H, W] alone."
                    )
                return images, y, self._weights_of_pixels(y, class_weight)

            named |= {"x": x.map(weighted)}
        elif isinstance(x, keras.utils.PyDataset):
            raise ValueError(
                f"'{self.name}': class_weight with masks from a PyDataset; expected arrays or a tf.data.Dataset. "
                "Return (x, y, sample_weight) from the PyDataset, with the weight of each pixel, [N, H, W]."
            )
        else:
            return named
        return named | {"class_weight": None}

    def _weights_of_pixels(self, y: Any, class_weight: Mapping[int, float]) -> tf.Tensor:
        """Return the weight of the class of each pixel, `[N, ...]` in Keras' `floatx`, 1 for a class without a weight.

        Args:
            y: Class indices `[N, ...]` or `[N, ..., 1]`, or one-hot masks `[N, ..., C]`.
            class_weight: Weights by class index.

        Raises:
            ValueError: `y` are handles.
        """
        mask = tf.convert_to_tensor(y)
        if mask.dtype == tf.string:
            raise ValueError(
                f"'{self.name}': class_weight with labels behind handles, which are not read as a whole; expected "
                "arrays of masks. Pass sample_weight instead: handles of images [H, W, 1] with the weight of each "
                "pixel."
            )
        rank = len(self._functional_twin.outputs[0].shape)
        if mask.shape.rank == rank:
            mask = tf.argmax(mask, -1) if mask.shape[-1] != 1 else mask[..., 0]
        classes = mask if mask.dtype.is_integer else tf.round(tf.cast(mask, tf.float64))
        weights = tf.ones(tf.shape(classes), keras.config.floatx())
        for number, weight in class_weight.items():
            weights = tf.where(
                tf.cast(classes, tf.int64) == int(number), tf.cast(weight, weights.dtype), weights
            )
        return weights


_CLASS_WEIGHT = list(inspect.signature(keras.Model.fit).parameters).index("class_weight") - 1
"""Position of `class_weight` among the arguments of `fit`."""
