"""Small forms of published networks, as people write them in Keras."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
from keras import layers, ops
from layer_cases import Case

from tfbig.models.convnext_v2 import GlobalResponseNorm
from tfbig.models.swin_transformer import window_attention


def normed(
    x: Any, filters: int, kernel: Any = 3, strides: int = 1, rate: int = 1, groups: int = 1
) -> Any:
    """Return a convolution with BatchNormalization and ReLU."""
    x = layers.Conv2D(
        filters,
        kernel,
        strides,
        padding="same",
        dilation_rate=rate,
        groups=groups,
        use_bias=False,
    )(x)
    return layers.ReLU()(layers.BatchNormalization()(x))


def separable(x: Any, filters: int, rate: int = 1) -> Any:
    """Return an atrous separable convolution as two normalised layers."""
    x = layers.DepthwiseConv2D(3, padding="same", dilation_rate=rate, use_bias=False)(x)
    return normed(layers.ReLU()(layers.BatchNormalization()(x)), filters, 1)


def residual(x: Any, filters: int, strides: int = 1, rate: int = 1, groups: int = 1) -> Any:
    """Return a basic residual block."""
    y = normed(normed(x, filters, 3, strides, rate), filters, 3, 1, rate, groups)
    same = strides == 1 and x.shape[-1] == filters
    short = x if same else layers.Conv2D(filters, 1, strides, padding="same")(x)
    return layers.ReLU()(layers.Add()([short, y]))


def gated(x: Any) -> Any:
    """Return an image scaled by squeeze and excitation."""
    gate = layers.GlobalAveragePooling2D(keepdims=True)(x)
    gate = layers.Conv2D(2, 1, activation="relu")(gate)
    gate = layers.Conv2D(x.shape[-1], 1, activation="sigmoid")(gate)
    return layers.Multiply()([x, gate])


def up(x: Any, filters: int) -> Any:
    return layers.Conv2DTranspose(filters, 2, 2, padding="same")(x)


def deeplab_v3_plus(x: Any) -> Any:
    """Chen et al. 2018, arXiv:1802.02611: atrous spatial pyramid of separable convolutions, and a decoder."""
    low = residual(normed(x, 4, 3, 2), 4)
    deep = residual(low, 6, 2)
    pyramid = [normed(deep, 4, 1), *(separable(deep, 4, rate) for rate in (2, 3))]
    height, width = deep.shape[1:3]
    pooled = normed(layers.GlobalAveragePooling2D(keepdims=True)(deep), 4, 1)
    pooled = layers.UpSampling2D((height, width), interpolation="bilinear")(pooled)
    deep = normed(layers.Concatenate()([*pyramid, pooled]), 4, 1)
    deep = layers.UpSampling2D(2, interpolation="bilinear")(deep)
    joined = layers.Concatenate()([deep, normed(low, 2, 1)])
    return layers.UpSampling2D(2, interpolation="bilinear")(separable(joined, 4))


def pspnet(x: Any) -> Any:
    """Zhao et al. 2017, arXiv:1612.01105: pooling to grids of several sizes, one of them a single pixel."""
    deep = residual(normed(x, 4, 3, 2), 6, 1, 2)
    height, width = deep.shape[1:3]
    branches = [deep]
    for side in (1, 2, 4):
        pooled = layers.AveragePooling2D((height // side, width // side))(deep)
        pooled = layers.Conv2D(2, 1, activation="relu")(pooled)
        size = height // pooled.shape[1], width // pooled.shape[2]
        branches.append(layers.UpSampling2D(size, interpolation="bilinear")(pooled))
    return layers.UpSampling2D(2)(normed(layers.Concatenate()(branches), 4))


def hrnet(x: Any) -> Any:
    """Wang et al. 2020, arXiv:1908.07919: branches of several resolutions that exchange images."""
    high = residual(normed(x, 4, 3, 2), 4)
    low = residual(normed(high, 6, 3, 2), 6)
    for _ in range(2):
        from_low = layers.UpSampling2D(2)(layers.Conv2D(4, 1)(low))
        from_high = layers.Conv2D(6, 3, 2, padding="same")(high)
        high, low = (
            residual(layers.ReLU()(layers.Add()([high, from_low])), 4),
            residual(layers.ReLU()(layers.Add()([low, from_high])), 6),
        )
    return layers.Concatenate()([high, layers.UpSampling2D(2, interpolation="bilinear")(low)])


def unet_plus_plus(x: Any) -> Any:
    """Zhou et al. 2018, arXiv:1807.10165: nested skip connections."""
    rows = [[normed(x, 4)]]
    for depth in (1, 2):
        rows.append([normed(layers.MaxPooling2D(2)(rows[-1][0]), 4 + depth)])
    for column in (1, 2):
        for depth in range(3 - column):
            joined = layers.Concatenate()([*rows[depth], up(rows[depth + 1][column - 1], 4)])
            rows[depth].append(normed(joined, 4))
    return layers.Average()([layers.Conv2D(2, 1)(y) for y in rows[0][1:]])


def fpn(x: Any) -> Any:
    """Lin et al. 2017, arXiv:1612.03144: a pyramid from the top down."""
    levels = [normed(x, 4, 3, 2)]
    for filters in (6, 8):
        levels.append(residual(levels[-1], filters, 2))
    top = layers.Conv2D(4, 1)(levels[-1])
    outputs = [top]
    for level in reversed(levels[:-1]):
        top = layers.Add()([layers.Conv2D(4, 1)(level), layers.UpSampling2D(2)(top)])
        outputs.append(layers.Conv2D(2, 3, padding="same")(top))
    return outputs


def linknet(x: Any) -> Any:
    """Chaurasia and Culurciello 2017, arXiv:1707.03718: skip connections by addition."""
    first = residual(normed(x, 4, 5, 2), 4)
    second = residual(first, 6, 2)
    y = normed(second, 2, 1)
    y = normed(layers.Conv2DTranspose(2, 3, 2, padding="same")(y), 4, 1)
    y = layers.Add()([y, first])
    return layers.Conv2DTranspose(3, 3, 2, padding="same", activation="relu")(y)


def enet(x: Any) -> Any:
    """Paszke et al. 2016, arXiv:1606.02147: dilated and asymmetric bottlenecks, PReLU, spatial dropout at rate 0."""
    first = layers.Conv2D(4, 3, 2, padding="same")(x)
    x = layers.Concatenate()([first, layers.MaxPooling2D(2)(x)])
    for rate in (1, 2, 4):
        y = layers.PReLU(shared_axes=[1, 2])(layers.Conv2D(2, 1, use_bias=False)(x))
        y = layers.Conv2D(2, 3, padding="same", dilation_rate=rate)(y)
        y = layers.Conv2D(2, (5, 1), padding="same", use_bias=False)(y)
        y = layers.Conv2D(2, (1, 5), padding="same")(layers.BatchNormalization()(y))
        y = layers.SpatialDropout2D(0.0)(layers.Conv2D(8, 1)(y))
        x = layers.PReLU(shared_axes=[1, 2])(layers.Add()([x, y]))
    return layers.Conv2DTranspose(3, 3, 2, padding="same")(x)


def espnet(x: Any) -> Any:
    """Mehta et al. 2018, arXiv:1803.06815: a pyramid of dilated convolutions, added step by step."""
    x = normed(x, 8, 3, 2)
    reduced = layers.Conv2D(2, 1)(x)
    branches = [
        layers.Conv2D(2, 3, padding="same", dilation_rate=rate, use_bias=False)(reduced)
        for rate in (1, 2, 4, 8)
    ]
    for i in range(1, 4):
        branches[i] = layers.Add()([branches[i], branches[i - 1]])
    joined = layers.Add()([layers.Concatenate()(branches), x])
    return layers.PReLU(shared_axes=[1, 2])(layers.BatchNormalization()(joined))


def drn(x: Any) -> Any:
    """Yu et al. 2017, arXiv:1705.09914: residual blocks with dilations in place of strides."""
    x = residual(normed(x, 4, 7), 6, 2)
    for rate in (2, 4, 2, 1):
        x = residual(x, 6, 1, rate)
    return layers.GlobalAveragePooling2D()(x)


def regnet(x: Any) -> Any:
    """Radosavovic et al. 2020, arXiv:2003.13678: bottlenecks with groups."""
    x = normed(x, 4, 3, 2)
    for filters, strides in ((8, 2), (8, 1)):
        y = normed(normed(x, filters, 1), filters, 3, strides, groups=filters // 4)
        y = layers.BatchNormalization()(layers.Conv2D(filters, 1)(y))
        short = x if strides == 1 else layers.Conv2D(filters, 1, strides)(x)
        x = layers.ReLU()(layers.Add()([short, y]))
    return layers.GlobalAveragePooling2D()(x)


def se_resnext(x: Any) -> Any:
    """Hu et al. 2018, arXiv:1709.01507: groups as many as channels divided by two, and gates."""
    x = normed(x, 4, 3, 2)
    for _ in range(2):
        y = normed(normed(x, 8, 1), 8, 3, groups=4)
        x = layers.ReLU()(layers.Add()([x, gated(layers.Conv2D(4, 1)(y))]))
    return layers.GlobalAveragePooling2D()(x)


def ghostnet(x: Any) -> Any:
    """Han et al. 2020, arXiv:1911.11907: half of the channels from cheap depthwise convolutions."""
    for filters, strides in ((4, 1), (6, 2)):
        first = normed(x, filters // 2, 1)
        cheap = layers.DepthwiseConv2D(3, padding="same", use_bias=False)(first)
        ghost = layers.Concatenate()([first, layers.ReLU()(layers.BatchNormalization()(cheap))])
        x = layers.DepthwiseConv2D(3, strides, padding="same")(ghost)
    return gated(x)


def shufflenet(x: Any) -> Any:
    """Zhang et al. 2018, arXiv:1707.01083: grouped convolutions of one pixel, with their channels shuffled."""
    x = normed(x, 8, 3, 2)
    for _ in range(2):
        y = normed(x, 8, 1, groups=2)
        height, width = y.shape[1:3]
        y = layers.Reshape((height, width, 2, 4))(y)
        y = layers.Permute((1, 2, 4, 3))(y)
        y = layers.Reshape((height, width, 8))(y)
        y = layers.BatchNormalization()(layers.DepthwiseConv2D(3, padding="same")(y))
        x = layers.ReLU()(layers.Add()([x, layers.Conv2D(8, 1, groups=2)(y)]))
    return x


def attention_unet(x: Any) -> Any:
    """Oktay et al. 2018, arXiv:1804.03999: skip connections with a gate from below."""
    skip = normed(normed(x, 4), 4)
    deep = normed(layers.MaxPooling2D(2)(skip), 6)
    gate = layers.Conv2D(3, 1)(layers.UpSampling2D(2)(deep))
    gate = layers.Activation("relu")(layers.Add()([layers.Conv2D(3, 1)(skip), gate]))
    gate = layers.Conv2D(1, 1, activation="sigmoid")(gate)
    joined = layers.Concatenate()([layers.Multiply()([skip, gate]), up(deep, 4)])
    return normed(joined, 4)


def res_unet(x: Any) -> Any:
    """Zhang et al. 2018, arXiv:1711.10684: residual blocks with the activation first."""

    def block(x: Any, filters: int, strides: int = 1) -> Any:
        y = layers.Conv2D(filters, 3, strides, padding="same")(
            layers.ReLU()(layers.BatchNormalization()(x))
        )
        y = layers.Conv2D(filters, 3, padding="same")(layers.ReLU()(layers.BatchNormalization()(y)))
        return layers.Add()([y, layers.Conv2D(filters, 1, strides)(x)])

    first = block(x, 4)
    second = block(first, 6, 2)
    return block(layers.Concatenate()([layers.UpSampling2D(2)(second), first]), 4)


def stardist(x: Any) -> Any:
    """Schmidt et al. 2018, arXiv:1806.03535: probabilities and distances along rays."""
    skip = normed(x, 4)
    deep = normed(layers.MaxPooling2D(2)(skip), 6)
    features = normed(layers.Concatenate()([skip, layers.UpSampling2D(2)(deep)]), 4)
    rays = layers.Conv2D(8, 1, activation="linear")(features)
    return [layers.Conv2D(1, 1, activation="sigmoid")(features), ops.relu(rays)]


def cellpose(x: Any) -> Any:
    """Stringer et al. 2021, doi:10.1038/s41592-020-01018-x: a style vector added to each block of the decoder."""
    skip = residual(x, 4)
    deep = residual(layers.MaxPooling2D(2)(skip), 6)
    style = layers.GlobalAveragePooling2D()(deep)
    style = layers.UnitNormalization()(style)
    y = layers.Concatenate()([layers.UpSampling2D(2)(deep), skip])
    shift = layers.Reshape((1, 1, 4))(layers.Dense(4)(style))
    return residual(layers.Add()([normed(y, 4), shift]), 4)


def edsr(x: Any) -> Any:
    """Lim et al. 2017, arXiv:1707.02921: residual blocks and sub-pixel upsampling."""
    start = x
    for _ in range(2):
        y = layers.Conv2D(4, 3, padding="same", activation="relu")(x)
        x = x + 0.1 * layers.Conv2D(4, 3, padding="same")(y)
    x = layers.Conv2D(4 * 4, 3, padding="same")(x + start)
    return ops.depth_to_space(x, 2)


def wavenet(x: Any) -> Any:
    """Van den Oord et al. 2016, arXiv:1609.03499: gated causal convolutions whose dilation doubles."""
    skips = []
    for rate in (1, 2, 4):
        options = {"padding": "causal", "dilation_rate": rate}
        value = layers.Conv1D(4, 2, activation="tanh", **options)(x)
        gate = layers.Conv1D(4, 2, activation="sigmoid", **options)(x)
        y = layers.Multiply()([value, gate])
        skips.append(layers.Conv1D(3, 1)(y))
        x = layers.Add()([x, layers.Conv1D(4, 1)(y)])
    return layers.ReLU()(layers.Add()(skips))


def tcn(x: Any) -> Any:
    """Bai et al. 2018, arXiv:1803.01271: residual blocks of causal convolutions."""
    for rate in (1, 2, 4):
        y = layers.Conv1D(4, 3, padding="causal", dilation_rate=rate, activation="relu")(x)
        y = layers.SpatialDropout1D(0.0)(layers.LayerNormalization()(y))
        x = layers.ReLU()(layers.Add()([x, y]))
    return layers.GlobalAveragePooling1D()(x)


def nnunet_3d(x: Any) -> Any:
    """Isensee et al. 2021, doi:10.1038/s41592-020-01008-z: instance normalisation, LeakyReLU, strides of each axis."""

    def block(x: Any, filters: int, strides: Any = 1) -> Any:
        x = layers.Conv3D(filters, 3, strides, padding="same")(x)
        return layers.LeakyReLU(negative_slope=0.01)(layers.GroupNormalization(groups=-1)(x))

    skip = block(x, 4)
    deep = block(skip, 6, (1, 2, 2))
    y = layers.Conv3DTranspose(4, (1, 2, 2), (1, 2, 2))(deep)
    return [block(layers.Concatenate()([y, skip]), 4), layers.Conv3D(2, 1)(deep)]


def block(x: Any, source: Any = None, heads: int = 2) -> Any:
    """Return attention and an MLP, each normalised first and added to its input."""
    y = layers.LayerNormalization()(x)
    y = layers.MultiHeadAttention(heads, 3)(y, y if source is None else source)
    x = layers.Add()([x, y])
    y = layers.Dense(2 * x.shape[-1], activation="gelu")(layers.LayerNormalization()(x))
    return layers.Add()([x, layers.Dense(x.shape[-1])(y)])


@keras.saving.register_keras_serializable("tests")
class ClassToken(layers.Layer):
    """A learned token before the others, and learned positions of all."""

    def build(self, shape: Any) -> None:
        _, tokens, width = shape
        self.token = self.add_weight(shape=(1, 1, width), initializer="normal", name="token")
        self.positions = self.add_weight(
            shape=(1, 1 + tokens, width), initializer="normal", name="positions"
        )

    def call(self, x: Any) -> Any:
        token = ops.broadcast_to(self.token, (ops.shape(x)[0], 1, x.shape[-1]))
        return ops.concatenate([token, x], axis=1) + self.positions

    def compute_output_shape(self, shape: Any) -> Any:
        return (shape[0], 1 + shape[1], shape[2])


def vision_transformer(x: Any) -> Any:
    """Dosovitskiy et al. 2021, arXiv:2010.11929: tokens of patches and a class token, here back to an image."""
    patches = layers.Conv2D(6, 2, 2)(x)
    tokens = ClassToken()(layers.Reshape((-1, 6))(patches))
    tokens = layers.LayerNormalization()(block(block(tokens)))
    image = layers.Reshape(patches.shape[1:])(tokens[:, 1:])
    scale = layers.Reshape((1, 1, 6))(layers.Dense(6)(tokens[:, 0]))
    return up(layers.Multiply()([image, scale]), 4)


def tokens_of_any_size(x: Any) -> Any:
    """A transformer without positions for images of any size, with the mean of the tokens as a gate."""
    tokens = layers.Reshape((-1, 6))(layers.Conv2D(6, 2, 2)(x))
    tokens = block(layers.Dropout(0.0)(tokens))
    gate = layers.Dense(4, activation="sigmoid")(layers.GlobalAveragePooling1D()(tokens))
    return layers.Multiply()([x, layers.Reshape((1, 1, 4))(gate)])


def segformer(x: Any) -> Any:
    """Xie et al. 2021, arXiv:2105.15203: keys and values of an image of lower resolution, and a mixing MLP."""
    x = layers.LayerNormalization()(layers.Conv2D(6, 3, 2, padding="same")(x))
    y = layers.LayerNormalization()(x)
    fewer = layers.LayerNormalization()(layers.Conv2D(6, 2, 2)(y))
    x = layers.Add()([x, layers.MultiHeadAttention(2, 3)(y, fewer)])
    y = layers.Dense(8)(layers.LayerNormalization()(x))
    y = layers.DepthwiseConv2D(3, padding="same", activation="gelu")(y)
    return up(layers.Add()([x, layers.Dense(6)(y)]), 4)


def trans_unet(x: Any) -> Any:
    """Chen et al. 2021, arXiv:2102.04306: a U-Net with a transformer in its middle."""
    skip = normed(x, 4)
    deep = block(normed(layers.MaxPooling2D(2)(skip), 6))
    return normed(layers.Concatenate()([skip, up(deep, 4)]), 4)


def axial_attention(x: Any) -> Any:
    """Ho et al. 2019, arXiv:1912.12180: attention along the rows, then along the columns."""
    for axis in (1, 2):
        y = layers.LayerNormalization()(x)
        x = layers.Add()([x, layers.MultiHeadAttention(2, 2, attention_axes=axis)(y, y)])
    return x


def swin(x: Any) -> Any:
    """Liu et al. 2021, arXiv:2103.14030: two blocks of windows of three rows, the second shifted, between others."""
    x = layers.Conv2D(8, 2, 2)(x)
    for shifted in (False, True):
        y = window_attention(layers.LayerNormalization()(x), 2, 3, shifted, f"attention_{shifted}")
        x = layers.Add()([x, y])
        x = layers.Add()([x, layers.Dense(8, activation="gelu")(layers.LayerNormalization()(x))])
    return layers.Conv2D(4, 3, padding="same")(x)


def convnext_v2(x: Any) -> Any:
    """Woo et al. 2023, arXiv:2301.00808: an inverted bottleneck whose channels are scaled by their norms."""
    x = layers.LayerNormalization()(layers.Conv2D(4, 2, 2)(x))
    y = layers.LayerNormalization()(layers.DepthwiseConv2D(5, padding="same")(x))
    y = GlobalResponseNorm()(layers.Dense(8, activation="gelu")(y))
    return up(layers.Add()([x, layers.Dense(4)(y)]), 4)


def _case(network: Callable[..., Any], **traits: Any) -> Case:
    return Case(f"networks.{network.__name__}", network, exact=False, skips=False, **traits)


ARCHITECTURES: list[Case] = [
    *(
        _case(network, size=(16, 24), fixed=True, partly_float32=True)
        for network in (deeplab_v3_plus, hrnet, pspnet)
    ),
    _case(shufflenet, size=(16, 24), fixed=True),
    _case(vision_transformer, size=(12, 16), fixed=True, tiles=False),
    _case(tokens_of_any_size, size=(12, 16), tiles=False),
    _case(swin, size=(14, 18), fixed=True),
    *(
        _case(network, size=(12, 16))
        for network in (segformer, trans_unet, axial_attention, convnext_v2)
    ),
    *(
        _case(network, size=(16, 24))
        for network in (
            unet_plus_plus,
            fpn,
            linknet,
            enet,
            espnet,
            drn,
            regnet,
            se_resnext,
            ghostnet,
            attention_unet,
            res_unet,
            stardist,
            cellpose,
            edsr,
        )
    ),
    _case(wavenet, spatial=1),
    _case(tcn, spatial=1),
    _case(nnunet_3d, spatial=3, size=(6, 8, 4)),
]
"""Cases of whole networks; bilinear resizing is in float32 in TensorFlow, and in Keras needs the size of the image."""
