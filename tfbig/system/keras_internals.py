"""Names of Keras 3.15 that its public interface lacks.

No other module uses any, and a test lists them. When Keras is upgraded, this is the module to
compare with its source.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import keras
from keras.src.applications.convnext import LayerScale as LayerScale
from keras.src.applications.convnext import StochasticDepth as StochasticDepth
from keras.src.applications.inception_resnet_v2 import CustomScaleLayer as CustomScaleLayer
from keras.src.backend import compute_output_spec as compute_output_spec
from keras.src.backend import get_keras_mask as get_keras_mask
from keras.src.backend.common.global_state import get_global_attribute, set_global_attribute
from keras.src.backend.common.stateless_scope import get_stateless_scope as get_stateless_scope
from keras.src.backend.common.stateless_scope import in_stateless_scope as in_stateless_scope
from keras.src.ops import core, image, linalg, math, nn, numpy
from keras.src.random.seed_generator import GLOBAL_SEED_GENERATOR
from keras.src.random.seed_generator import global_seed_generator as global_seed_generator
from keras.src.saving import saving_lib
from keras.src.trainers.trainer import model_supports_jit as supports_jit  # noqa: F401

LORA: Final = ("lora_kernel_a", "lora_kernel_b")
"""Names of the variables of LoRA."""
OPERATIONS: Final[dict[str, type]] = {
    **vars(image),
    **vars(linalg),
    **vars(numpy),
    **vars(nn),
    **vars(math),
    **vars(core),
}
"""Classes of the operations of `keras.ops` by name, among other names of their modules."""


def operations(names: str) -> list[type]:
    """Return the classes of the operations of `keras.ops` with these names, separated by spaces, that exist."""
    return [OPERATIONS[name] for name in names.split() if name in OPERATIONS]


# ---------------------------------------------------------------------------------- models and layers


def tensor_of(variable: Any) -> Any:
    """Return the `tf.Variable` of a Keras variable; `variable.value` may be cast inside a layer."""
    return variable._value


def tensors_of(variables: Any) -> list[Any]:
    """Return the `tf.Variable` of each Keras variable."""
    return [variable._value for variable in variables]


def local_tensors_of(variables: Any) -> list[Any]:
    """Return the `tf.Variable` of each Keras variable; under a strategy, that of each replica of this process."""
    return [part for v in tensors_of(variables) for part in getattr(v, "values", (v,))]


def device_of(variables: Any) -> str | None:
    """Return the device of variables; None if they are on several devices, or if there are none."""
    devices = {variable.device for variable in tensors_of(variables)}
    return devices.pop() if len(devices) == 1 else None


def inner_layers(layer: Any) -> list[Any]:
    """Return the layers inside a layer or model, those inside them included; none for anything else."""
    return list(layer._flatten_layers(include_self=False)) if isinstance(layer, keras.Layer) else []


def kernel_and_lora(layer: keras.layers.Layer) -> list[Any]:
    """Return the kernel of a Dense layer or a convolution, and the factors of its change if LoRA is enabled."""
    if not layer.lora_enabled:
        return [layer.kernel]
    return [layer._kernel, layer.lora_kernel_a, layer.lora_kernel_b]


class AttentionParts(NamedTuple):
    """Parts of a MultiHeadAttention or GroupedQueryAttention layer.

    Args:
        inputs: Projections of query, key and value.
        output: Projection of the result.
        gate: Projection of the query that the result is multiplied by, or None.
        axes: Axes of `[N, ..., C]` that queries attend along.
        window: Distance plus one to the last key on each side that a query attends to, or None.
        rate: Rate of the dropout of pairs.
        generator: Its seed generator, or None.
    """

    inputs: tuple[keras.Layer, keras.Layer, keras.Layer]
    output: keras.Layer
    gate: keras.Layer | None
    axes: tuple[int, ...]
    window: int | None
    rate: float
    generator: Any


def attention_parts(layer: Any) -> AttentionParts:
    """Return the parts of a layer of attention that is built."""
    is_grouped = isinstance(layer, keras.layers.GroupQueryAttention)
    dropout = layer._dropout_layer if layer.dropout else None
    return AttentionParts(
        (layer._query_dense, layer._key_dense, layer._value_dense),
        layer._output_dense,
        getattr(layer, "_gate_dense", None),
        (1,) if is_grouped else tuple(layer.attention_axes),
        layer.sliding_window if is_grouped else layer._sliding_window,
        layer.dropout,
        None if dropout is None else dropout.seed_generator,
    )


def changed_kernels(model: keras.Model) -> dict[int, Any]:
    """Return the kernels of a network's Dense layers with LoRA, changed by it, by the `id` of their variable."""
    inner = [each for each in inner_layers(model) if isinstance(each, keras.layers.Dense)]
    return {id(each._kernel): each.kernel for each in inner if each.lora_enabled}


def seed_generators(layer: Any) -> list[Any]:
    """Return the seed generators of a layer and of the layers inside it."""
    layers = [layer, *inner_layers(layer)] if isinstance(layer, keras.Layer) else []
    return [generator for each in layers for generator in each._seed_generators]


def existing_seed_generator() -> Any:
    """Return the global seed generator, or None if it has not been used."""
    return get_global_attribute(GLOBAL_SEED_GENERATOR)


@contextmanager
def without_autocast() -> Iterator[None]:
    """Leave the autocast scope of an outer layer in a `with` block, so that a layer enters its own if it is mixed.

    Inside `AutocastScope(None)`, Keras would cast float32 factors of LoRA to the float64 of their layer.
    """
    outer = get_global_attribute("autocast_scope")
    set_global_attribute("autocast_scope", None)
    try:
        yield
    finally:
        set_global_attribute("autocast_scope", outer)


def has_graph(model: keras.Model) -> bool:
    """Return whether a model is functional."""
    return hasattr(model, "_nodes_by_depth")


def functional_of(sequential: keras.Sequential) -> Any:
    """Return the functional model inside a `Sequential` model that is built."""
    return sequential._functional


def nodes(functional: Any) -> Iterator[Any]:
    """Yield the calls of layers in a functional model, in topological order."""
    for depth in sorted(functional._nodes_by_depth, reverse=True):
        yield from functional._nodes_by_depth[depth]


LISTS_OF_VARIABLES: Final = (
    "_trainable_variables",
    "_non_trainable_variables",
    "_seed_generators",
    "_layers",
    "_metrics",
    "_losses",
)
"""Attributes in which a layer keeps what it tracks."""


def takes(layer: Any, argument: str) -> bool:
    """Return whether the `call` of a layer takes an argument that Keras fills in, such as `training`."""
    return bool(layer._call_has_context_arg.get(argument, False))


@contextmanager
def in_phase(layer: Any, training: bool) -> Iterator[dict[int, list[bool]]]:
    """Have layers that are called on Keras tensors in a `with` block inherit the mode of a layer around them.

    As everywhere in Keras, a `training` argument of one call holds for the calls after it that have none.

    Yields:
        The modes of the calls of each layer, in their order, by the `id` of the layer.
    """
    outer = get_global_attribute("current_call_ctx")
    set_global_attribute("current_call_ctx", None)
    context, symbolic_call = layer._get_call_context(), keras.Layer.symbolic_call
    context.set_value("training", training)
    modes: dict[int, list[bool]] = {}

    def recorded(self: Any, *args: Any, **kwargs: Any) -> Any:
        modes.setdefault(id(self), []).append(bool(context.get_value("training")))
        return symbolic_call(self, *args, **kwargs)

    keras.Layer.symbolic_call = recorded
    try:
        with without_autocast():
            yield modes
    finally:
        keras.Layer.symbolic_call = symbolic_call
        set_global_attribute("current_call_ctx", outer)


@contextmanager
def with_symbolic_constants(layer: Any) -> Iterator[list[tuple[Any, Any]]]:
    """Have the layers inside a layer be called symbolically in a `with` block, also where all arguments are constants.

    Otherwise Keras computes their results, such as the rows of an Embedding, from the weights that they have now.

    Yields:
        `(Keras tensor, constant)` for each constant.
    """
    inner = {id(each) for each in inner_layers(layer)}
    call, constants = keras.Layer.__call__, list[tuple[Any, Any]]()

    def symbolic(argument: Any) -> Any:
        if not hasattr(argument, "shape") or not hasattr(argument, "dtype"):
            return argument
        dtype = keras.backend.standardize_dtype(argument.dtype)
        constants.append((keras.KerasTensor(argument.shape, dtype, name="constant"), argument))
        return constants[-1][0]

    def called(self: Any, *args: Any, **kwargs: Any) -> Any:
        flat = keras.tree.flatten((args, kwargs))
        has_tensors = any(isinstance(a, keras.KerasTensor) for a in flat)
        if id(self) in inner and self.weights and not has_tensors:
            args, kwargs = keras.tree.map_structure(symbolic, (args, kwargs))
        return call(self, *args, **kwargs)

    keras.Layer.__call__ = called
    try:
        yield constants
    finally:
        keras.Layer.__call__ = call


@contextmanager
def noting_reads(variables: Iterable[Any]) -> Iterator[list[Any]]:
    """Yield a list of the variables whose values, more than shapes and types, are read in a `with` block."""
    watched, read = {id(variable) for variable in variables}, list[Any]()
    value = keras.Variable.value

    def noted(self: Any) -> Any:
        if id(self) in watched and not in_stateless_scope():
            read.append(self)
        return value.fget(self)

    keras.Variable.value = property(noted)
    try:
        yield read
    finally:
        keras.Variable.value = value


@contextmanager
def without_new_calls(layer: Any) -> Iterator[Callable[[Any], int]]:
    """Forget the symbolic calls of the layers inside a layer that a `with` block makes.

    Yields:
        Function from a call in the block to its number among those of the same layer.
    """
    counts = {
        id(each): (each, len(each._inbound_nodes), len(each._outbound_nodes))
        for each in (layer, *inner_layers(layer))
    }

    def number(call: Any) -> int:
        first = counts.get(id(call.operation), (None, 0, 0))[1]
        return call.operation._inbound_nodes.index(call) - first

    try:
        yield number
    finally:
        for each, inbound, outbound in counts.values():
            del each._inbound_nodes[inbound:]
            del each._outbound_nodes[outbound:]


def built_shapes(model: keras.Model) -> dict[str, Any] | None:
    """Return the shapes that a model was built for, by argument; None if it is not built."""
    return model._build_shapes_dict if model.built else None


def is_used(tensor: Any) -> bool:
    """Return whether a layer or operation was called on a Keras tensor."""
    return hasattr(tensor, "_keras_history")


def producer_of(tensor: Any) -> Any:
    """Return the call that computes a Keras tensor; None for an input."""
    operation, index, _ = getattr(tensor, "_keras_history", (None, 0, 0))
    return operation and operation._inbound_nodes[index]


def input_structure(functional: Any) -> Any:
    """Return the inputs of a functional model in the structure that it was created with."""
    return functional._inputs_struct


def output_structure(functional: Any) -> Any:
    """Return the outputs of a functional model in the structure that a call returns: one alone is in no list."""
    outputs = functional._outputs_struct
    single = isinstance(outputs, (list, tuple)) and len(outputs) == 1
    return outputs[0] if single else outputs


# --------------------------------------------------------------------------------- compiled models


def compiled_loss(model: keras.Model) -> Any:
    """Return the `CompileLoss` of a model; None without a loss, or before `compile`."""
    return getattr(model, "_compile_loss", None)


def compiled_metrics(model: keras.Model) -> Any:
    """Return the `CompileMetrics` of a model; None without metrics, or before `compile`."""
    return getattr(model, "_compile_metrics", None)


def build_metrics(model: keras.Model, labels: Any, outputs: Any) -> None:
    """Create the variables of the compiled metrics of a model.

    Args:
        model: The compiled model.
        labels: Labels of a batch.
        outputs: Outputs of the model for a batch.
    """
    metrics = model._compile_metrics
    if metrics is not None and not metrics.built:
        metrics.build(labels, outputs)


def track_loss(model: keras.Model, loss: Any, batch: Any) -> None:
    """Update the mean loss of an epoch with that of a batch.

    Args:
        model: The compiled model.
        loss: Loss of the batch.
        batch: Number of images in it.
    """
    model._loss_tracker.update_state(loss, sample_weight=batch)


def strategy_of(model: Any) -> Any:
    """Return the `tf.distribute.Strategy` in whose scope a model was created, or None."""
    return getattr(model, "_distribute_strategy", None)


def build_for(model: keras.Model, batch: Any) -> None:
    """Create the variables of a compiled model for a batch `(x, y)`, without running it."""
    model._maybe_symbolic_build(data_batch=batch)


def losses_with_weights(compiled: Any) -> list[tuple[Any, Any]]:
    """Return the losses of a `CompileLoss` that is built, each with its weight or None."""
    return [(entry.loss, entry.loss_weights) for entry in compiled._flat_losses]


def unbuilt_copy(compiled: Any) -> Any:
    """Return a `CompileLoss` with the same losses that no data has shaped yet."""
    losses, weights = compiled._user_loss, compiled._user_loss_weights
    return type(compiled)(losses, weights, output_names=compiled.output_names)


@contextmanager
def replaced_losses(compiled: Any, replace: Callable[[Any], Any]) -> Iterator[None]:
    """Replace the losses of a `CompileLoss` in a `with` block, in which it may be built.

    Args:
        compiled: The `CompileLoss`.
        replace: Function from a loss to an object with an attribute `loss`, which is set again at the end.
    """
    if compiled.built:
        entries = compiled._flat_losses
        compiled._flat_losses = [e._replace(loss=replace(e.loss)) for e in entries]
        try:
            yield
        finally:
            compiled._flat_losses = entries
        return
    losses = compiled._user_loss
    compiled._user_loss = keras.tree.map_structure(
        lambda loss: None if loss is None else replace(loss), losses
    )
    try:
        yield
    finally:
        compiled._user_loss = losses
    compiled._flat_losses = [e._replace(loss=e.loss.loss) for e in compiled._flat_losses]


def flat_metrics(compiled: Any) -> tuple[list[Any], list[Any]]:
    """Return the metrics and the weighted metrics of a `CompileMetrics` that is built, per output."""
    return compiled._flat_metrics, compiled._flat_weighted_metrics


def flat_targets(compiled: Any, y: Any) -> list[Any]:
    """Return labels or predictions in the order of the metrics of a `CompileMetrics`."""
    return list(compiled._flatten_y(y))


def function_of(wrapper: Any) -> Callable[..., Any] | None:
    """Return the function that a loss or metric wraps, with its keyword arguments bound; None if there is none."""
    return getattr(wrapper, "_fn", None)


def function_options(wrapper: Any) -> dict[str, Any]:
    """Return the keyword arguments with which a loss or metric calls the function that it wraps."""
    return getattr(wrapper, "_fn_kwargs", {})


# -------------------------------------------------------------------------------------- optimizers


def variable_index(optimizer: keras.Optimizer, variable: Any) -> int:
    """Return the position of a variable among those of an optimizer."""
    return int(optimizer._get_variable_index(variable))


def trainable_variables_of(optimizer: keras.Optimizer) -> list[Any]:
    """Return the variables that an optimizer updates."""
    return list(optimizer._trainable_variables)


def decays(optimizer: keras.Optimizer, variable: Any) -> bool:
    """Return whether weight decay applies to a variable."""
    return bool(optimizer._use_weight_decay(variable))


@contextmanager
def without_gradient_sums(optimizer: Any) -> Iterator[None]:
    """Keep an optimizer from summing gradients over replicas in a `with` block."""
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    inner._all_reduce_sum_gradients = list
    try:
        yield
    finally:
        del inner._all_reduce_sum_gradients


def weights_file(model: keras.Model) -> memoryview:
    """Return the bytes of the `.weights.h5` file of a model.

    `Model.save_weights` writes a file through HDF5, which ends the process when the disk is full.

    Args:
        model: The model.
    """
    stream = io.BytesIO()
    store = saving_lib.H5IOStore(stream, mode="w")
    saving_lib._save_state(model, store, None, inner_path="", visited_saveables=set())
    store.close()
    return stream.getbuffer()
