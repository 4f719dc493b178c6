"""Rules that turn each Keras layer into nodes: a local function with its window, or a reduction.

A rule is a function of a `Call`, which holds the layer and its inputs and adds nodes to the graph. To support a layer,
add one rule, see `rule`. Layers without an image among their inputs need none, see `on_whole_values`.
"""

from tfbig.network.rules import (
    adaptive_pooling,
    attention,
    convolutions,
    noise,
    normalisation,
    operations,
    pixelwise,
    pooling,
    resampling,
    resizing,
    selection,
    windowed_operations,
)
from tfbig.network.rules.call import Call, Slot
from tfbig.network.rules.registry import RULES, Rule, apply, find, has, is_augmentation, rule
from tfbig.network.rules.whole_values import on_whole_values

__all__ = [
    "RULES",
    "Call",
    "Rule",
    "Slot",
    "adaptive_pooling",
    "apply",
    "attention",
    "convolutions",
    "find",
    "has",
    "is_augmentation",
    "noise",
    "normalisation",
    "on_whole_values",
    "operations",
    "pixelwise",
    "pooling",
    "resampling",
    "resizing",
    "rule",
    "selection",
    "windowed_operations",
]
