"""Registry of the rules of layer classes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras

from tfbig.errors import Advice, UnsupportedLayerError
from tfbig.network.rules import channel_shapes
from tfbig.network.rules.call import Call

IN_PIPELINE = (
    "It changes whole images at random: apply it to the data instead, with dataset.map(...), and leave it out of the "
    "model."
)
"""Advice for layers that augment images."""
Rule = Callable[[Call], "int | list[int]"]
RULES: dict[type, Rule] = {}
MASKED = keras.layers.Attention, keras.layers.Softmax
"""Layers of Keras whose rules heed the argument `mask`."""
HOOKS = ("call", "convolution_op", "kernel", "_calculate_scores", "_merge_function", "_moments")
"""Attributes whose override makes a subclass compute something else, so that the rule of its parent does not hold."""


def rule(*kinds: type) -> Callable[[Rule], Rule]:
    """Register the rule of a custom layer: how it runs on a strip of rows, or what it sums over the image.

    A rule is a function of a `Call`, which holds the layer, its inputs and its mode. It adds nodes with
    `call.local`, `call.reduce` and `call.whole`, and returns the value of the layer's output (a list for several).
    Layers without an image among their inputs (only vectors, pooled images) need no rule.

    Args:
        *kinds: Layer classes. The rule also holds for subclasses, unless they have a rule or override `call`.

    Returns:
        A decorator that registers a function and returns it unchanged.

    Example:
        `call.local` receives one `Window` per spatial axis; the rows that it requests arrive with zeros outside the
        image, so that a valid convolution returns the rows of the strip. Without windows, each pixel is computed from
        the pixel at the same position: `call.local(run)`.

        >>> class Blur(keras.layers.Layer):
        ...     def build(self, shape):
        ...         self.kernel = self.add_weight(shape=(3, 3, shape[-1], 1))
        ...     def call(self, x):
        ...         return tf.nn.depthwise_conv2d(x, self.kernel, [1, 1, 1, 1], "SAME")
        >>> @tfbig.rule(Blur)
        ... def blur(call):
        ...     def run(x, w, strip):
        ...         return tf.nn.depthwise_conv2d(x[0], w[0], [1, 1, 1, 1], "VALID")
        ...     window = tfbig.geometry.Window(kernel=3, padding="same")
        ...     return call.local(run, [window, window], [call.layer.kernel])

        `call.reduce` receives the sum over a strip, and a function of the sum over all strips; gradients are derived:

        >>> class Energy(keras.layers.Layer):
        ...     def call(self, x):
        ...         return tf.sqrt(tf.reduce_mean(x**2, [1, 2]))
        >>> @tfbig.rule(Energy)
        ... def energy(call):
        ...     return call.reduce(
        ...         lambda x, strip: tf.reduce_sum(x[0] ** 2, [1, 2]),
        ...         lambda total, pixels, w: tf.sqrt(total / pixels),
        ...     )
        >>> image = keras.Input((None, None, 2))
        >>> model = keras.Model(image, Energy()(Blur()(image)))
        >>> x = np.random.default_rng(0).normal(size=(1, 12, 8, 2)).astype("float32")
        >>> bool(np.allclose(tfbig.stream(model, strip_rows=4)(x), model(x)))
        True
    """

    def register(function: Rule) -> Rule:
        for kind in kinds:
            RULES[kind] = function
        return function

    return register


def apply(call: Call) -> list[int]:
    """Add the nodes of a call to its graph by the rule of its layer, and return the values of its outputs.

    Raises:
        UnsupportedLayerError: No class of the layer has a rule, or its settings need the whole image.
    """
    layer = call.layer
    check_settings(call)
    function = find(layer, call.kind)
    if channel_shapes.shaped(call.graph, call.inputs) and not channel_shapes.accepts_any(function):
        call.refuse(
            f"receives an image of shape {tuple(call.specs[0].shape)}, whose channels have several axes or none; "
            "reshape it to [N, rows, ..., C] first, or give the model a fixed input size."
        )
    result = function(call)
    values = result if isinstance(result, list) else [result]
    if len(values) != len(call.outputs) or not all(isinstance(v, int) for v in values):
        call.refuse(
            f"has a rule that returns {result!r}; expected the value of its output, as call.local returns it"
            f"{f', a list of {len(call.outputs)}' if len(call.outputs) > 1 else ''}."
        )
    return values


def check_settings(call: Call) -> None:
    """Raise if a setting that any layer may have cannot run strip by strip.

    Raises:
        UnsupportedLayerError: It is channels-first, regularises its output, or a layer of Keras gets a mask.
    """
    layer = call.layer
    if _ignores_mask(call):
        call.refuse(
            "receives a mask, which layers before it made or passed on, and which strips would not heed. Multiply the "
            "image by the mask instead."
        )
    if getattr(layer, "data_format", "channels_last") != "channels_last":
        call.refuse(
            "has data_format='channels_first'; strips need 'channels_last'. "
            "Build the model with data_format='channels_last'."
        )
    if getattr(layer, "activity_regularizer", None) is not None:
        call.refuse(
            "has an activity_regularizer, which needs the whole image; regularise the weights instead."
        )


def _ignores_mask(call: Call) -> bool:
    """Return whether a layer of Keras gets a mask, as Keras passes them on, that its rule does not heed."""
    layer, mask = call.layer, call.arguments[1].get("mask")
    of_keras = isinstance(layer, keras.Layer) and type(layer).__module__.startswith("keras.")
    return mask is not None and of_keras and not isinstance(layer, MASKED)


def find(layer: Any, kind: type | None = None) -> Rule:
    """Return the rule of a layer or operation.

    Args:
        layer: The layer.
        kind: Class to look up; by default the class of the layer.

    Raises:
        UnsupportedLayerError: No class of the layer has a rule, or a subclass computes something else.
    """
    found = _of_class(kind or type(layer))
    if found is None:
        raise UnsupportedLayerError(
            f"layer '{layer.name}' ({type(layer).__name__}) has no rule, so it cannot run strip by strip. "
            f"{_advice(layer)}",
            *(() if is_augmentation(layer) else (Advice.PLAIN_KERAS,)),
        )
    return found


def has(layer: Any, kind: type | None = None) -> bool:
    """Return whether a layer has a rule. Args: as in `find`."""
    return _of_class(kind or type(layer)) is not None


def _of_class(kind: type) -> Rule | None:
    """Return the rule of a class; None without one, or if a subclass computes something else."""
    for base in kind.__mro__:
        if base in RULES:
            return RULES[base]
        if any(hook in vars(base) for hook in HOOKS) and "twin_call" not in vars(base):
            break
    return None


def _advice(layer: Any) -> str:
    """Return what to do about a layer or operation without a rule."""
    if is_augmentation(layer):
        return IN_PIPELINE
    names = sorted({k.__name__ for k in RULES if k.__module__.startswith("keras.src.layers")})
    with_rule = f"Keras layers with a rule: {', '.join(names)}."
    if not isinstance(layer, keras.layers.Layer):
        return f"It is an operation of keras.ops: use a layer in its place. {with_rule}"
    name = type(layer).__name__
    if isinstance(layer, keras.layers.Lambda):
        return (
            "Put its function into a layer class of your own, and add a rule for that class with @tfbig.rule, see "
            f"help(tfbig.rule). {with_rule}"
        )
    return f"Add one with @tfbig.rule({name}), see help(tfbig.rule). {with_rule}"


def is_augmentation(layer: Any) -> bool:
    """Return whether a layer or operation is one of Keras' random changes of whole images, such as RandomFlip."""
    kind = type(layer)
    return kind.__name__.startswith("Random") and "preprocessing" in kind.__module__
