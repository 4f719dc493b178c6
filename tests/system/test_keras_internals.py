"""All private names of Keras and TensorFlow in use are listed here, so that an upgrade has one place to look."""

from __future__ import annotations

import inspect
import sys
from types import SimpleNamespace

import keras
import pytest
import tensorflow as tf
from private_names import MODULES, own_names, private_uses

import tfbig
from tfbig.system import keras_internals

KERAS, TENSORFLOW = "tfbig.system.keras_internals", "tfbig.system.tensorflow_internals"

OF_KERAS = {
    *("_all_reduce_sum_gradients", "_compile_loss", "_compile_metrics", "_distribute_strategy"),
    *("_flat_losses", "_flat_metrics", "_flat_weighted_metrics", "_flatten_layers", "_flatten_y"),
    *("_fn", "_fn_kwargs", "_functional", "_get_variable_index", "_inputs_struct"),
    *("_loss_tracker", "_maybe_symbolic_build", "_nodes_by_depth", "_outputs_struct"),
    *("_seed_generators", "_trainable_variables", "_use_weight_decay", "_user_loss"),
    *("_kernel", "_user_loss_weights", "_value", "_build_shapes_dict", "_call_has_context_arg"),
    *("_dropout_layer", "_gate_dense", "_key_dense", "_output_dense", "_query_dense"),
    *("_sliding_window", "_value_dense"),
    *("_get_call_context", "_inbound_nodes", "_keras_history", "_outbound_nodes"),
    "keras.src.applications.convnext.LayerScale",
    "keras.src.applications.convnext.StochasticDepth",
    "keras.src.applications.inception_resnet_v2.CustomScaleLayer",
    "keras.src.backend.common.global_state.get_global_attribute",
    "keras.src.backend.common.stateless_scope.get_stateless_scope",
    "keras.src.backend.common.global_state.set_global_attribute",
    "keras.src.backend.common.stateless_scope.in_stateless_scope",
    "keras.src.backend.compute_output_spec",
    "keras.src.backend.get_keras_mask",
    *(f"keras.src.ops.{name}" for name in ("core", "image", "linalg", "math", "nn", "numpy")),
    "keras.src.random.seed_generator.GLOBAL_SEED_GENERATOR",
    "keras.src.random.seed_generator.global_seed_generator",
    "keras.src.saving.saving_lib",
    "keras.src.trainers.trainer.model_supports_jit",
    "_save_state",
}

OF_TENSORFLOW = {
    *("_config", "_function_captures", "_initialized", "_py_funcs_used_in_graph", "_registry"),
    "tensorflow.python.client.device_lib",
    "tensorflow.python.eager.context",
    "tensorflow.python.eager.record",
    "tensorflow.python.framework.config.is_op_determinism_enabled",
    "tensorflow.python.framework.ops",
    "tensorflow.python.framework.func_graph.dismantle_func_graph",
    "tensorflow.python.util._pywrap_util_port",
}

OVERRIDDEN = {
    "_backend_apply_gradients",
    "_backend_update_step",
    "_make_function",
    "_obj_type",
    "_resolve_auto_jit_compile",
}
"""Private methods of Keras classes that classes of tfbig override."""

OF_BLOCKS = {"_inputs_struct", "_nodes_by_depth", "_outputs_struct"}
"""Names of functional models that `tfbig.network.blocks.Block` has too."""

MODELS_THAT_USE_THEIR_OWN_VALUE = {"tfbig.sources.views", "tfbig.sources.bags.bag"}


def test_private_names_are_used_in_two_modules_only() -> None:
    ours = own_names() - {"_value"} - OF_BLOCKS  # sources have a `_value` too
    listed = {KERAS: OF_KERAS, TENSORFLOW: OF_TENSORFLOW}
    for module in MODULES:
        own = ours | {"_value"} if module in MODELS_THAT_USE_THEIR_OWN_VALUE else ours
        assert private_uses(module, own) == listed.get(module, set()), module


def test_overridden_private_methods() -> None:
    for name in MODULES:
        __import__(name)
    classes = {
        value
        for name in MODULES
        for value in vars(sys.modules[name]).values()
        if inspect.isclass(value) and value.__module__.startswith("tfbig.")
    }
    found = set()
    for each in classes:
        of_keras = [base for base in each.__mro__ if base.__module__.startswith("keras.")]
        own = [base for base in each.__mro__ if base.__module__.startswith("tfbig.")]  # and mixins
        for method in {name for base in own for name in vars(base)}:
            private = method.startswith("_") and not method.startswith("__")
            if private and any(method in vars(base) for base in of_keras):
                found.add(method)
    assert found == OVERRIDDEN


def test_layers_inside_are_those_of_nested_models_too() -> None:
    inner = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2, name="nested")])
    model = keras.Sequential([keras.Input((4,)), inner, keras.layers.Dense(1, name="last")])
    names = [layer.name for layer in keras_internals.inner_layers(model)]
    assert {"nested", "last", inner.name} <= set(names)
    assert model.name not in names
    assert keras_internals.inner_layers(SimpleNamespace()) == []


def test_losses_are_replaced_and_come_back_when_the_call_fails() -> None:
    compiled = keras.src.trainers.compile_utils.CompileLoss("mse", output_names=["y"])
    x = tf.zeros([1, 2])
    compiled(x, x)
    before = keras_internals.losses_with_weights(compiled)
    with (
        pytest.raises(ZeroDivisionError),
        keras_internals.replaced_losses(compiled, lambda loss: SimpleNamespace(loss=loss)),
    ):
        assert keras_internals.losses_with_weights(compiled) != before
        raise ZeroDivisionError
    assert keras_internals.losses_with_weights(compiled) == before


def test_gradients_are_not_summed_again() -> None:
    optimizer = keras.optimizers.SGD()
    summed = optimizer._all_reduce_sum_gradients
    with keras_internals.without_gradient_sums(optimizer):
        assert optimizer._all_reduce_sum_gradients([1]) == [1]
        assert optimizer._all_reduce_sum_gradients != summed
    assert optimizer._all_reduce_sum_gradients == summed


def test_strategy_of_a_model() -> None:
    strategy = tf.distribute.OneDeviceStrategy("cpu")
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    assert keras_internals.strategy_of(model) is strategy
    assert keras_internals.strategy_of(tfbig) is None
