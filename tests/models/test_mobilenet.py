"""MobileNetV2 in the form of torchvision; `test_pretrained.py` compares its features with torch's."""

import pytest
from keras import layers

from tfbig.models.mobilenet import from_timm, mobilenetv2


@pytest.fixture(scope="module")
def network():
    return mobilenetv2()


def test_parameters(network):
    """Trainable parameters in torchvision's documentation."""
    assert sum(w.shape.num_elements() for w in network.trainable_weights) == 3504872
    assert network.output_shape == (None, 1000)


@pytest.mark.slow
@pytest.mark.parametrize(("pooling", "shape"), [(None, (None, 2, 3, 1280)), ("max", (None, 1280))])
def test_without_its_top(pooling, shape):
    assert mobilenetv2((64, 96, 3), include_top=False, pooling=pooling).output_shape == shape


def test_initial_weights(network):
    """Kernels have the spread of torch: the variance is 2 / (rows * columns * out), also of depthwise ones."""
    wide = network.get_layer("features.18.0").kernel.numpy()
    deep = network.get_layer("features.17.conv.1.0").kernel.numpy()
    assert wide.std() == pytest.approx((2 / 1280) ** 0.5, rel=0.02)
    assert deep.std() == pytest.approx((2 / (9 * 960)) ** 0.5, rel=0.05)
    norms = [layer for layer in network.layers if isinstance(layer, layers.BatchNormalization)]
    assert {(norm.momentum, norm.epsilon) for norm in norms} == {(0.9, 1e-5)}


def test_names_of_timm():
    """Every module of torchvision has a name in timm; others are kept."""
    names = ["blocks.0.0.conv_pw.weight", "blocks.6.0.bn3.running_var", "bn2.bias", "other.bias"]
    renamed = from_timm(dict.fromkeys(names, 0))
    assert list(renamed) == [
        *("features.1.conv.1.weight", "features.17.conv.3.running_var"),
        *("features.18.1.bias", "other.bias"),
    ]
