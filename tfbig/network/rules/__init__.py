"""Rules that turn each Keras layer into nodes: a local function with its window, or a reduction.

A rule is a function of a `Call`, which holds the layer and its inputs and adds nodes to the graph. To support a layer,
add one rule, see `rule`. Layers without an image among their inputs need none, see `on_whole_values`.
"""

from tfbig.network.rules import (
    adaptive_pooling,
    attention,
    channels,
    constant_images,
    convolutions,
    multi_head_attention,
    noise,
    normalisation,
    operations,
    pixelwise,
    pooling,
    products,
    reductions,
    resampling,
    resizing,
    selection,
    single_head_attention,
    tokens,
    windowed_operations,
    wrappers,
)
from tfbig.network.rules.call import Call, Slot
from tfbig.network.rules.constant_images import on_whole_values
from tfbig.network.rules.registry import (
    RULES,
    Rule,
    check_settings,
    find,
    has,
    is_augmentation,
    rule,
)
from tfbig.network.rules.tokens import apply

__all__ = [
    "RULES",
    "Call",
    "Rule",
    "Slot",
    "adaptive_pooling",
    "apply",
    "attention",
    "channels",
    "check_settings",
    "constant_images",
    "convolutions",
    "find",
    "has",
    "is_augmentation",
    "multi_head_attention",
    "noise",
    "normalisation",
    "on_whole_values",
    "operations",
    "pixelwise",
    "pooling",
    "products",
    "reductions",
    "resampling",
    "resizing",
    "rule",
    "selection",
    "single_head_attention",
    "tokens",
    "windowed_operations",
    "wrappers",
]
