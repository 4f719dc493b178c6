"""How each Keras layer runs on a strip: its window and local function, or its reduction.

A rule is a function `(layer, graph, inputs, training) -> value id`. Adding a layer is adding one rule.
"""

from tfbig.rules import convolutions, normalisation, pixelwise, pooling, resampling
from tfbig.rules.registry import RULES, Rule, find, rule

__all__ = [
    "RULES",
    "Rule",
    "convolutions",
    "find",
    "normalisation",
    "pixelwise",
    "pooling",
    "resampling",
    "rule",
]
