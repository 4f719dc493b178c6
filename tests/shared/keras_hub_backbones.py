"""Small backbones of keras-hub: models of their own class, of blocks of their own classes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import keras_hub
from layer_cases import Case

hub = keras_hub.models
ANY = (None, None, 3)


class Backbone(Case):
    """A backbone as it is, without layers around it."""

    def model(self) -> keras.Model:
        """Return a new backbone."""
        backbone: keras.Model = self.apply()
        return backbone


def resnet(**options: Any) -> keras.Model:
    return hub.ResNetBackbone(
        **{
            "input_conv_filters": [64],
            "input_conv_kernel_sizes": [7],
            "stackwise_num_filters": [64, 6, 8],
            "stackwise_num_blocks": [1, 2, 1],
            "stackwise_num_strides": [1, 2, 2],
            "block_type": "basic_block",
            "image_shape": ANY,
            **options,
        }
    )


def deep_resnet() -> keras.Model:
    """Return a ResNet of four stages."""
    return resnet(
        stackwise_num_filters=[64, 4, 6, 8],
        stackwise_num_blocks=[1] * 4,
        stackwise_num_strides=[1, 2, 2, 2],
    )


def resnet_v2() -> keras.Model:
    return resnet(block_type="bottleneck_block", use_pre_activation=True)


def resnet_vd() -> keras.Model:
    """Return a ResNet with a deep stem."""
    return resnet(
        input_conv_filters=[4, 4, 64],
        input_conv_kernel_sizes=[3, 3, 3],
        block_type="basic_block_vd",
    )


def vgg() -> keras.Model:
    return hub.VGGBackbone([1, 2], [4, 6], image_shape=ANY)


def densenet() -> keras.Model:
    return hub.DenseNetBackbone([1, 2], image_shape=ANY, growth_rate=4)


def xception() -> keras.Model:
    return hub.XceptionBackbone([[4, 6], [6, 8]], [True, False], image_shape=ANY)


def cspnet(block: str = "dark", stage: str = "dark", **options: Any) -> keras.Model:
    return hub.CSPNetBackbone(
        stem_filters=4,
        stem_kernel_size=3,
        stem_strides=1,
        stackwise_depth=[1, 2],
        stackwise_strides=[1, 2],
        stackwise_num_filters=[4, 8],
        block_type=f"{block}_block",
        stage_type=stage,
        image_shape=ANY,
        **options,
    )


def csp_resnet() -> keras.Model:
    return cspnet("bottleneck", "cs3", cross_linear=True, block_ratio=[0.5], stem_padding="same")


def mobilenet(**options: Any) -> keras.Model:
    """Return a MobileNet of the third version."""
    return hub.MobileNetBackbone(
        **{
            "stackwise_expansion": [[6, 8], [8, 8]],
            "stackwise_num_blocks": [2, 2],
            "stackwise_num_filters": [[4, 4], [6, 6]],
            "stackwise_kernel_size": [[3, 3], [5, 5]],
            "stackwise_num_strides": [[2, 1], [2, 1]],
            "stackwise_se_ratio": [[None, None], [0.25, 0.25]],
            "stackwise_activation": [["relu", "relu"], ["hard_swish", "hard_swish"]],
            "stackwise_padding": [[1, 1], [2, 2]],
            "output_num_filters": 8,
            "input_activation": "hard_swish",
            "output_activation": "hard_swish",
            "input_num_filters": 4,
            "image_shape": ANY,
            "depthwise_filters": 4,
            "depthwise_stride": 2,
            "depthwise_residual": False,
            "squeeze_and_excite": 0.5,
            "last_layer_filter": 8,
            **options,
        }
    )


def efficientnet() -> keras.Model:
    return hub.EfficientNetBackbone(
        stackwise_width_coefficients=[1.0] * 3,
        stackwise_depth_coefficients=[1.0] * 3,
        stackwise_kernel_sizes=[3, 3, 5],
        stackwise_num_repeats=[1, 2, 1],
        stackwise_input_filters=[8, 4, 6],
        stackwise_output_filters=[4, 6, 8],
        stackwise_expansion_ratios=[1, 4, 4],
        stackwise_squeeze_and_excite_ratios=[0.25, 0.25, 0.25],
        stackwise_strides=[1, 2, 2],
        stackwise_block_types=["v1", "v1", "unfused"],
        stackwise_force_input_filters=[0] * 3,
        stackwise_nores_option=[False] * 3,
        dropout=0.0,
        depth_divisor=2,
        min_depth=2,
        num_features=16,
        input_shape=ANY,
    )


def hgnetv2() -> keras.Model:
    return hub.HGNetV2Backbone(
        depths=[1, 2],
        embedding_size=4,
        hidden_sizes=[8, 12],
        stem_channels=[3, 4, 4],
        hidden_act="relu",
        use_learnable_affine_block=True,
        stackwise_stage_filters=[(4, 4, 8, 1, 2, 3), (8, 4, 12, 2, 2, 5)],
        apply_downsample=[False, True],
        use_lightweight_conv_block=[False, True],
        image_shape=ANY,
    )


def retinanet() -> keras.Model:
    return hub.RetinaNetBackbone(
        image_encoder=deep_resnet(),
        min_level=3,
        max_level=6,
        use_p5=False,
        image_shape=ANY,
    )


def deeplab_v3() -> keras.Model:
    return hub.DeepLabV3Backbone(
        image_encoder=resnet(),
        projection_filters=4,
        low_level_feature_key="P2",
        spatial_pyramid_pooling_key="P4",
        upsampling_size=4,
        dilation_rates=[2, 3],
        image_shape=ANY,
    )


def basnet() -> keras.Model:
    return hub.BASNetBackbone(
        image_encoder=deep_resnet(),
        num_classes=1,
        image_shape=ANY,
        projection_filters=64,
    )


def _case(backbone: Callable[..., keras.Model], **traits: Any) -> Case:
    return Backbone(
        f"keras_hub.{backbone.__name__}",
        backbone,
        size=(64, 96),
        exact=False,
        skips=False,
        **traits,
    )


BACKBONES = [
    _case(backbone, partly_float32=backbone in (deeplab_v3, basnet))
    for backbone in (
        resnet,
        resnet_v2,
        resnet_vd,
        vgg,
        densenet,
        xception,
        cspnet,
        csp_resnet,
        mobilenet,
        efficientnet,
        hgnetv2,
        retinanet,
        deeplab_v3,
        basnet,
    )
]
