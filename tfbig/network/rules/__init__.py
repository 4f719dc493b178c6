"""How each Keras layer runs on a strip: its window and local function, or its reduction.

A rule is a function of a `Call`, which knows the layer and its inputs and adds nodes to the graph. Adding a layer is
adding one rule, see `rule`. What has no image among its inputs needs none, see `small`.
"""

from tfbig.network.rules import (
    convolutions,
    noise,
    normalisation,
    operations,
    pixelwise,
    pooling,
    resampling,
)
from tfbig.network.rules.call import Call, Slot
from tfbig.network.rules.registry import RULES, Rule, apply, find, rule
from tfbig.network.rules.small import small

__all__ = [
    "RULES",
    "Call",
    "Rule",
    "Slot",
    "apply",
    "convolutions",
    "find",
    "noise",
    "normalisation",
    "operations",
    "pixelwise",
    "pooling",
    "resampling",
    "rule",
    "small",
]
