"""A rule for every layer class, and how one is found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tfbig.errors import UnsupportedLayerError
from tfbig.network.rules.call import Call

Rule = Callable[[Call], "int | list[int]"]
RULES: dict[type, Rule] = {}
HOOKS = ("call", "convolution_op", "kernel", "_merge_function", "_moments")
"""What a subclass that computes something else overrides."""


def rule(*kinds: type) -> Callable[[Rule], Rule]:
    """Teaches the engine layers of one's own: how they run on a strip of rows, or what they sum up over the image.

    A rule is a function of a `Call`, which knows the layer, its inputs and whether it trains. It adds nodes by
    `call.local`, `call.reduce` and `call.whole`, and returns the value of the layer's output (a list for several).
    Layers whose inputs are all small (vectors, pooled images) need no rule.

    Args:
        kinds: layer classes; the rule holds for their subclasses too, unless these have one or override `call`.

    Returns:
        A decorator that gives back the function.

    Examples:
        A layer with a window. `call.local` takes one `Window` per spatial axis; the rows that it asks for arrive
        with zeros outside the image, so that a valid convolution gives the rows of the strip:

        ```python
        class Blur(keras.layers.Layer):
            def build(self, shape):
                self.kernel = self.add_weight(shape=(3, 3, shape[-1], 1))

            def call(self, x):
                return tf.nn.depthwise_conv2d(x, self.kernel, [1, 1, 1, 1], "SAME")

        @tfbig.rule(Blur)
        def blur(call):
            def run(x, w, strip):
                return tf.nn.depthwise_conv2d(x[0], w[0], [1, 1, 1, 1], "VALID")

            window = tfbig.geometry.Window(kernel=3, padding="same")
            return call.local(run, [window, window], [call.layer.kernel])
        ```

        Without windows every pixel is computed from the pixel at its own place: `return call.local(run)`.

        A reduction: what a strip adds to a sum, and what is made from the sum over all strips. Gradients follow:

        ```python
        class Energy(keras.layers.Layer):
            def call(self, x):
                return tf.sqrt(tf.reduce_mean(x**2, [1, 2]))

        @tfbig.rule(Energy)
        def energy(call):
            return call.reduce(
                lambda x, strip: tf.reduce_sum(x[0] ** 2, [1, 2]),
                lambda total, pixels, w: tf.sqrt(total / pixels),
            )
        ```
    """

    def register(function: Rule) -> Rule:
        for kind in kinds:
            RULES[kind] = function
        return function

    return register


def apply(call: Call) -> list[int]:
    """Adds the nodes of a call to its graph, by the rule of its layer; gives the values of its outputs.

    Raises:
        UnsupportedLayerError: no class of the layer has a rule, or it does something that no strip can.
    """
    layer = call.layer
    if getattr(layer, "data_format", "channels_last") != "channels_last":
        call.refuse(
            "has data_format='channels_first'; strips need 'channels_last'. "
            "Build the model with data_format='channels_last'."
        )
    if getattr(layer, "activity_regularizer", None) is not None:
        call.refuse(
            "has an activity_regularizer, which needs the whole image; regularise its weights."
        )
    found = find(layer, call.kind)(call)
    values = found if isinstance(found, list) else [found]
    if len(values) != len(call.outputs) or not all(isinstance(v, int) for v in values):
        call.refuse(
            f"has a rule that gives {found!r}; expected the value of its output, as call.local gives it"
            f"{f', a list of {len(call.outputs)}' if len(call.outputs) > 1 else ''}."
        )
    return values


def find(layer: Any, kind: type | None = None) -> Rule:
    """The rule of a layer or operation.

    Args:
        layer: the layer, for messages.
        kind: class whose rule is meant; that of the layer by default.

    Raises:
        UnsupportedLayerError: no class of the layer has one, or a subclass computes something else.
    """
    name = type(layer).__name__
    for base in (kind or type(layer)).__mro__:
        if base in RULES:
            return RULES[base]
        if any(hook in vars(base) for hook in HOOKS) and "twin_call" not in vars(base):
            break
    names = sorted({k.__name__ for k in RULES if k.__module__.startswith("keras.src.layers")})
    raise UnsupportedLayerError(
        f"layer '{layer.name}' ({name}) has no rule, so it cannot run strip by strip. Teach it one with "
        f"@tfbig.rule({name}), see help(tfbig.rule). Keras layers with a rule: {', '.join(names)}."
    )
