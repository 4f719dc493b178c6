"""Weights drawn in the order and in the shapes of a torch module, for comparison with recorded outputs of its code.

The recorded modules got their weights, in the order of `state_dict`, from `rng.normal(size=shape, scale=0.3)` with
`rng = np.random.default_rng(0)`.
"""

import numpy as np


class PublishedWeights:
    """Draws the weights of one module after the other."""

    def __init__(self):
        self.rng = np.random.default_rng(0)

    def draw(self, *shape):
        """Return the next weights."""
        return self.rng.normal(size=shape, scale=0.3)

    def dense(self, layer, parts=1):
        """Draw a Dense layer that is `parts` modules in torch, each with its share of the units."""
        inputs, units = layer.kernel.shape
        kernels, biases = [], []
        for _ in range(parts):
            kernels.append(self.draw(units // parts, inputs))
            biases += [self.draw(units // parts)] if layer.use_bias else []
        layer.kernel.assign(np.concatenate(kernels).T)
        if biases:
            layer.bias.assign(np.concatenate(biases))

    def norm(self, layer):
        """Draw a LayerNormalization."""
        for weight in layer.weights:
            weight.assign(self.draw(*weight.shape))
