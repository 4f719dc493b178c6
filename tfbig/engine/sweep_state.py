"""Tensors that a step carries from sweep to sweep."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from tfbig.engine.step_geometry import StepGeometry
from tfbig.network.graph import Node
from tfbig.plan.sweeps import Layout, Sweep
from tfbig.stores.image_store import GradientStore, ImageSource

Structure = Any


@dataclass
class StepState:
    """Tensors that exist between the sweeps of one step.

    Args:
        layout: Sweeps, and where their images are stored.
        geometry: Sizes, addresses and strips.
        images: Stores and inputs, by value id.
        wholes: Tensors, or tuples of tensors, by value id.
        weights: One tensor per entry of `Graph.weights`.
        trained: Positions of the weights that need a gradient.
        learned: Value ids that need a gradient.
        done: Int32 scalar that is computed when the latest sweep has ended; before the first, any.
        known_batch: N if it is known while tracing.
        d_images: Stores of gradients, by value id.
        d_wholes: Gradients of whole values, with the structure of `wholes`.
        d_weights: Gradients of the weights so far, by position.
        sinks: Keys of writers that receive an image instead of a store, by value id.
    """

    layout: Layout
    geometry: StepGeometry
    images: dict[int, ImageSource]
    wholes: dict[int, Structure]
    weights: list[tf.Tensor]
    trained: frozenset[int]
    learned: frozenset[int]
    done: tf.Tensor
    known_batch: int | None
    d_images: dict[int, GradientStore] = field(default_factory=dict)
    d_wholes: dict[int, Structure] = field(default_factory=dict)
    d_weights: dict[int, tf.Tensor] = field(default_factory=dict)
    sinks: dict[int, tf.Tensor] = field(default_factory=dict)

    @property
    def sweeps(self) -> tuple[Sweep, ...]:
        """Sweeps of the layout, in order."""
        return self.layout.sweeps

    def writer(self, value: int) -> Sweep | None:
        """Return the sweep that stores an image in the forward pass; None for an input of the graph."""
        return next((sweep for sweep in self.sweeps if value in sweep.writes), None)

    @property
    def weight_gradients(self) -> list[tf.Tensor | None]:
        """One gradient per weight; None for a weight that is not trainable."""
        return [
            self._weight_gradient(w) if w in self.trained else None
            for w in range(len(self.weights))
        ]

    def _weight_gradient(self, weight: int) -> tf.Tensor:
        """Return the gradient of a weight by its position; zeros if nothing depends on it."""
        known = self.d_weights.get(weight)
        return tf.zeros_like(self.weights[weight]) if known is None else known

    def run_wholes(self, nodes: Sequence[Node]) -> None:
        """Run whole nodes: add their results to `wholes`."""
        for node in nodes:
            inputs = [self.wholes[i] for i in node.inputs]
            weights = [self.weights[w] for w in node.weights]
            self.wholes[node.output] = node.op.function(inputs, weights)

    def finish_reductions(self, sweep: Sweep, partials: list[Structure]) -> None:
        """Compute the results of the reductions of a sweep, and its whole nodes."""
        for node, partial in zip(sweep.reductions, partials, strict=True):
            pixels = self.geometry.pixels[node.inputs[0]]
            self.wholes[node.output] = node.op.finalize(partial, pixels)
        self.run_wholes(sweep.wholes)
