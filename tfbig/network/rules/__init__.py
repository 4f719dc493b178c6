"""Rules that turn each Keras layer into nodes: a local function with its window, or a reduction.

A rule is a function of a `Call`, which holds the layer and its inputs and adds nodes to the graph. To support a layer,
add one rule, see `rule`. Layers without an image among their inputs need none, see `on_whole_values`.
"""

from tfbig.network.rules import (
    attention,
    channels,
    convolutions,
    noise,
    normalisation,
    operations,
    pixelwise,
    pooling,
    products,
    reductions,
    resampling,
)
from tfbig.network.rules.call import Call, Slot
from tfbig.network.rules.channels import apply
from tfbig.network.rules.registry import RULES, Rule, find, rule
from tfbig.network.rules.whole_values import on_whole_values

__all__ = [
    "RULES",
    "Call",
    "Rule",
    "Slot",
    "apply",
    "attention",
    "channels",
    "convolutions",
    "find",
    "noise",
    "normalisation",
    "on_whole_values",
    "operations",
    "pixelwise",
    "pooling",
    "products",
    "reductions",
    "resampling",
    "rule",
]
