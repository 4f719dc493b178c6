"""Names of TensorFlow 2.21 that its public interface lacks.

No other module uses any, and a test lists them. When TensorFlow is upgraded, this is the module to
compare with its source.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

from tensorflow.core.protobuf import config_pb2, rewriter_config_pb2
from tensorflow.python.client import device_lib
from tensorflow.python.eager import context, record
from tensorflow.python.framework import ops
from tensorflow.python.framework.config import is_op_determinism_enabled
from tensorflow.python.framework.func_graph import dismantle_func_graph
from tensorflow.python.util import _pywrap_util_port


def stop_recording() -> Any:
    """Return a context manager in which no gradient tape records."""
    return record.stop_recording()


def is_watched(tensor: Any) -> bool:
    """Return whether a gradient tape would record an operation on a tensor."""
    return bool(record.should_record_backprop([tensor]))


def gradient_name(operation: Any) -> str:
    """Return the name under which the gradient of an operation is registered.

    Args:
        operation: An `IdentityN` that `tf.custom_gradient` has added to a graph.
    """
    return str(operation.get_attr("_gradient_op_type").decode())


def registered_gradient(name: str) -> Callable[..., Any]:
    """Return the function that is registered as a gradient."""
    gradient: Callable[..., Any] = ops.gradient_registry.lookup(name)
    return gradient


def register_gradient(name: str, function: Callable[..., Any]) -> None:
    """Replace the function that is registered as a gradient."""
    ops.gradient_registry._registry[name]["type"] = function


def unregister_gradient(name: str) -> None:
    """Remove a gradient, which TensorFlow never does."""
    ops.gradient_registry._registry.pop(name, None)


def dismantle(graph: Any) -> None:
    """Break the reference cycles of the graph of a trace: its operations, its tensors and its callbacks."""
    dismantle_func_graph(graph)
    graph.inputs, graph.outputs, graph.structured_outputs = [], [], None
    graph._py_funcs_used_in_graph = []
    graph._function_captures = type(graph._function_captures)()


def callbacks_of(graph: Any) -> list[Any]:
    """Return the Python functions that a graph holds for its operations; TensorFlow's table holds them weakly."""
    return getattr(graph, "_py_funcs_used_in_graph", [])


def set_callbacks(graph: Any, functions: Sequence[Any]) -> None:
    """Replace the Python functions that a graph holds.

    Args:
        graph: The graph.
        functions: Functions as `callbacks_of` returns them.
    """
    graph._py_funcs_used_in_graph = list(functions)


def registered(function: Any) -> Any:
    """Return the form of a function that `tf.numpy_function` registered."""
    return function.ag_dnc_wrapper__


def has_devices() -> bool:
    """Return whether TensorFlow has created its devices, after which their configuration is fixed."""
    return bool(context.context()._initialized)


@contextmanager
def optimized_once() -> Iterator[None]:
    """Let TensorFlow optimise the graphs of functions that are called in a `with` block once, where it would twice.

    The first run of a streamed EfficientNetB0 at 1024 x 1024 takes 16 s instead of 19.5 s, and further steps the same
    time. All calls of a function must be in such a block: TensorFlow prepares it anew for other options.
    """
    state = context.context()
    before = state.function_call_options
    state.function_call_options = _once(before.executor_type, before.config_proto_serialized)
    try:
        yield
    finally:
        state.function_call_options = before


@cache
def _once(executor_type: str | None, config: bytes) -> Any:
    """Return options of calls with one pass of TensorFlow's optimizer of graphs."""
    proto = config_pb2.ConfigProto.FromString(config)
    rewrites = proto.graph_options.rewrite_options
    if rewrites.meta_optimizer_iterations == rewriter_config_pb2.RewriterConfig.DEFAULT_NUM_ITERS:
        rewrites.meta_optimizer_iterations = rewriter_config_pb2.RewriterConfig.ONE
    return context.FunctionCallOptions(executor_type, proto)


def is_deterministic() -> bool:
    """Return whether `tf.config.experimental.enable_op_determinism` was called."""
    return bool(is_op_determinism_enabled())


def session_config() -> Any:
    """Return the `ConfigProto` with which TensorFlow creates its devices; None if it was not set."""
    return context.context()._config


def set_session_config(config: Any) -> None:
    """Set the `ConfigProto` with which TensorFlow creates its devices."""
    context.context()._config = config


def uses_onednn() -> bool:
    """Return whether operations on the CPU use kernels of oneDNN."""
    return bool(_pywrap_util_port.IsMklEnabled())


def accelerator_bytes() -> int:
    """Return the bytes that TensorFlow may allocate on the first accelerator; creates the devices."""
    devices: list[Any] = device_lib.list_local_devices()
    return max(int(d.memory_limit) for d in devices if d.device_type == "GPU")
