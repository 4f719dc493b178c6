"""A rule for every layer class, and how one is found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tfbig.errors import UnsupportedLayerError
from tfbig.graph import Graph

Rule = Callable[[Any, Graph, list[int], bool], int]
RULES: dict[type, Rule] = {}


def rule(*kinds: type) -> Callable[[Rule], Rule]:
    """Registers a rule for layer classes and their subclasses."""

    def register(function: Rule) -> Rule:
        for kind in kinds:
            RULES[kind] = function
        return function

    return register


def find(layer: Any) -> Rule:
    """The rule of a layer.

    Raises:
        UnsupportedLayerError: no class of the layer has one.
    """
    for kind in type(layer).__mro__:
        if kind in RULES:
            return RULES[kind]
    raise UnsupportedLayerError(
        f"layer '{layer.name}' ({type(layer).__name__}) has no rule, so it cannot run strip by strip. "
        f"Supported are {', '.join(sorted(k.__name__ for k in RULES))} and their subclasses."
    )
