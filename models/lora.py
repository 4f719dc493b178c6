"""LoRA: a network that stays as it is, and changes of low rank of its Dense layers that are trained."""

from __future__ import annotations

import keras
from keras import layers

from tfbig.system import keras_internals


def add_lora(network: keras.Model, rank: int) -> int:
    """Train only low-rank changes of the Dense layers of a network: `kernel + a b`, a `[inputs, rank]`.

    b starts with zeros, so that the network is the same at first; everything else of it is frozen. `enable_lora` of
    Keras adds both factors. A saved network has the changes in its kernels, and factors that are zero; `tfbig`'s
    checkpoints have both factors as they are.

    Hu et al., "LoRA: Low-rank adaptation of large language models" (ICLR 2022), with alpha equal to the rank.

    Args:
        network: Network whose layers are built, such as a vision transformer. It is changed.
        rank: Number of columns of a and rows of b.

    Returns:
        Number of parameters that are trained.

    Raises:
        ValueError: The network has no Dense layers, one already has LoRA, or `rank` is below 1.

    Example:
        >>> network = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4)])
        >>> tfbig.models.lora.add_lora(network, rank=2)  # 8 x 2 and 2 x 4
        24
    """
    if rank < 1:
        raise ValueError(f"rank={rank}; expected 1 or more.")
    inner = keras_internals.inner_layers(network)
    if not any(isinstance(layer, layers.Dense) for layer in inner):
        raise ValueError(
            f"'{network.name}' has no Dense layers for LoRA. Use a vision transformer, or train the whole network."
        )
    for layer in inner:
        if isinstance(layer, layers.Dense):
            layer.enable_lora(rank)
            if layer.use_bias:
                layer.bias.trainable = False
        elif not keras_internals.inner_layers(layer):
            layer.trainable = False
    return sum(int(keras.ops.size(weight)) for weight in network.trainable_variables)
