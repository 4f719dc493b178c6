"""Keras layers that work strip by strip, each a plan of one node.

Every layer has the signature, defaults, weights and config of its Keras twin, and keyword-only `max_elements`:
the most input elements of a strip (the papers' max_N). Weights interchange in both directions.

Memory: input, output and their gradients stay whole in host memory, `4 * N * H * W * C` bytes each in float32; the
device holds strips of at most `max_elements` input elements, their output and gradients.

Exactness: bitwise where sums are exact (integers), otherwise up to summation order (float64: relative 1e-10).

Source: Big-Layers, section 3; ours have bias, groups, any stride and dilation, and both paddings.
"""

from __future__ import annotations

import inspect
from typing import Any

import keras
import tensorflow as tf
from keras.src.backend import in_stateless_scope

from tfbig.engine import keras_variables
from tfbig.engine.program import Program
from tfbig.network import keras_reader
from tfbig.network.graph import Graph
from tfbig.network.instances import Instances as Instances
from tfbig.plan.planner import Planner
from tfbig.system import backend, replication
from tfbig.system.budget import DEFAULT_STRIPS

MAX_ELEMENTS = 2**24
"""Default `max_elements`: 64 MiB of float32."""

__all__ = [
    "BigActivation",
    "BigAdd",
    "BigAveragePooling2D",
    "BigBatchNormalization",
    "BigConcatenate",
    "BigConv2D",
    "BigConv2DTranspose",
    "BigCropping2D",
    "BigDense",
    "BigDepthwiseConv2D",
    "BigDropout",
    "BigGlobalAveragePooling2D",
    "BigGlobalMaxPooling2D",
    "BigGroupNormalization",
    "BigLayerNormalization",
    "BigMaxPooling2D",
    "BigMultiply",
    "BigReLU",
    "BigSeparableConv2D",
    "BigUpSampling2D",
    "BigZeroPadding2D",
    "Instances",
]


class Streamed:
    """What turns a Keras layer into one that runs strip by strip; mixed in before the twin."""

    def __init__(self, *args: Any, max_elements: int | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        replication.check()
        if max_elements is not None and not (isinstance(max_elements, int) and max_elements > 0):
            raise ValueError(
                "Invalid value for argument `max_elements`. Expected a positive integer or None. "
                f"Received: max_elements={max_elements}"
            )
        self.max_elements = max_elements
        self.supports_jit = False  # strips come from the host
        self.autocast = False  # strips are cast, not the whole image
        self._programs: dict[Any, Program | None] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if Streamed in cls.__bases__:  # not what a user derives from one of ours
            cls.__signature__ = _signature(_twin(cls))  # type: ignore[attr-defined]
            keras.saving.register_keras_serializable(package="tfbig")(cls)

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        tensors = [tf.convert_to_tensor(t) for t in keras.tree.flatten(inputs)]
        if in_stateless_scope() or not any(t.shape.rank == 4 for t in tensors):
            return self._plain(inputs, training)  # values that stand for its variables, or no image
        program = self._program(bool(training), tensors)
        if program is None:
            return self._plain(inputs, training)
        return keras_variables.call(program, tensors)[0]

    def _plain(self, inputs: Any, training: bool | None) -> Any:
        """The twin on the whole input, for what is not an image or is left as it is."""
        takes = "training" in inspect.signature(self.twin_call).parameters
        inputs = keras.tree.map_structure(lambda t: tf.cast(t, self.compute_dtype), inputs)  # type: ignore[attr-defined]
        return self.twin_call(inputs, **({"training": training} if takes else {}))

    @property
    def twin_call(self) -> Any:
        """`call` of the twin."""
        return super().call  # type: ignore[misc]

    def _program(self, training: bool, tensors: list[tf.Tensor]) -> Program | None:
        """None where there is nothing to do: dropout at inference, a linear activation."""
        shapes = tuple((t.dtype, t.shape.rank, t.shape[-1]) for t in tensors)
        key = (training and self.trainable, shapes)  # type: ignore[attr-defined]
        if key not in self._programs:
            graph = Graph()
            inputs = [
                graph.input(f"{self.name}/input", t.shape.rank == 4, int(t.shape[-1]), t.dtype.name)  # type: ignore[attr-defined]
                for t in tensors
            ]
            specs = [keras.KerasTensor(t.shape, t.dtype.name) for t in tensors]
            made = self.compute_output_spec(specs if len(specs) > 1 else specs[0])
            graph.outputs = keras_reader.read_call(
                graph, self, inputs, specs, [made], training, kind=_twin(type(self))
            )
            self._programs[key] = self._planned(graph) if graph.nodes else None
        return self._programs[key]

    def _planned(self, graph: Graph) -> Program:
        planner = Planner(
            graph,
            DEFAULT_STRIPS,
            name=self.name,  # type: ignore[attr-defined]
            max_elements=self.max_elements or MAX_ELEMENTS,
        )
        return Program(graph, planner, [backend.accelerator()])

    def compute_output_spec(self, *args: Any, **kwargs: Any) -> Any:
        shape = keras.tree.map_structure(lambda t: t.shape, args[0])
        return keras.KerasTensor(self.compute_output_shape(shape), dtype=self.compute_dtype)  # type: ignore[attr-defined]

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "max_elements": self.max_elements}  # type: ignore[misc]


def _twin(kind: type) -> type:
    """The Keras class behind a Big layer, or behind what a user derives from one."""
    return kind.__mro__[kind.__mro__.index(Streamed) + 1]


def _signature(twin: type) -> inspect.Signature:
    """The twin's signature with keyword-only `max_elements`."""
    found = inspect.signature(twin)
    parameters = list(found.parameters.values())
    extra = inspect.Parameter("max_elements", inspect.Parameter.KEYWORD_ONLY, default=None)
    rest = [p for p in parameters if p.kind is inspect.Parameter.VAR_KEYWORD]
    return found.replace(parameters=[p for p in parameters if p not in rest] + [extra, *rest])


class BigConv2D(Streamed, keras.layers.Conv2D):
    """`keras.layers.Conv2D`, strip by strip. See the module for memory and exactness."""


class BigDepthwiseConv2D(Streamed, keras.layers.DepthwiseConv2D):
    """`keras.layers.DepthwiseConv2D`, strip by strip."""


class BigSeparableConv2D(Streamed, keras.layers.SeparableConv2D):
    """`keras.layers.SeparableConv2D`, strip by strip; the image between its two steps is never whole."""


class BigConv2DTranspose(Streamed, keras.layers.Conv2DTranspose):
    """`keras.layers.Conv2DTranspose`, strip by strip."""


class BigDense(Streamed, keras.layers.Dense):
    """`keras.layers.Dense` over the channels of every pixel, strip by strip; plain on vectors."""


class BigBatchNormalization(Streamed, keras.layers.BatchNormalization):
    """`keras.layers.BatchNormalization` with exact statistics of the whole batch, streamed.

    Two sweeps: moments of every strip merged by count, mean and m2 (see `tfbig.ops.moments`), then the normalisation.
    Moving statistics as in Keras (biased variance).
    """


class BigLayerNormalization(Streamed, keras.layers.LayerNormalization):
    """`keras.layers.LayerNormalization` over the channels (`axis=-1`), strip by strip."""


class BigGroupNormalization(Streamed, keras.layers.GroupNormalization):
    """`keras.layers.GroupNormalization` with exact statistics of every image, streamed."""


class BigMaxPooling2D(Streamed, keras.layers.MaxPooling2D):
    """`keras.layers.MaxPooling2D`, strip by strip."""


class BigAveragePooling2D(Streamed, keras.layers.AveragePooling2D):
    """`keras.layers.AveragePooling2D`, strip by strip."""


class BigGlobalAveragePooling2D(Streamed, keras.layers.GlobalAveragePooling2D):
    """`keras.layers.GlobalAveragePooling2D`, strip by strip, summed in float32 or wider."""


class BigGlobalMaxPooling2D(Streamed, keras.layers.GlobalMaxPooling2D):
    """`keras.layers.GlobalMaxPooling2D`, strip by strip; equal maxima share the gradient as in Keras."""


class BigUpSampling2D(Streamed, keras.layers.UpSampling2D):
    """`keras.layers.UpSampling2D` (nearest, bilinear), strip by strip."""


class BigZeroPadding2D(Streamed, keras.layers.ZeroPadding2D):
    """`keras.layers.ZeroPadding2D`, strip by strip."""


class BigCropping2D(Streamed, keras.layers.Cropping2D):
    """`keras.layers.Cropping2D`, strip by strip."""


class BigActivation(Streamed, keras.layers.Activation):
    """`keras.layers.Activation`, strip by strip."""


class BigReLU(Streamed, keras.layers.ReLU):
    """`keras.layers.ReLU`, strip by strip."""


class BigDropout(Streamed, keras.layers.Dropout):
    """`keras.layers.Dropout`; the mask depends on seed and place, not on the strips, and is made again backward."""


class BigAdd(Streamed, keras.layers.Add):
    """`keras.layers.Add`, strip by strip."""


class BigMultiply(Streamed, keras.layers.Multiply):
    """`keras.layers.Multiply`, strip by strip."""


class BigConcatenate(Streamed, keras.layers.Concatenate):
    """`keras.layers.Concatenate` over the channels (`axis=-1`), strip by strip."""


ALL = [c for c in list(globals().values()) if isinstance(c, type) and issubclass(c, Streamed)][1:]
"""Every Big layer."""
