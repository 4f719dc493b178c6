"""The programs of a streamed model, one per kind of data, built when they are first needed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from tfbig.engine import machine_rates, read_ahead
from tfbig.engine.bound_program import BoundProgram
from tfbig.engine.program import Program
from tfbig.errors import UnsupportedLayerError
from tfbig.geometry.background import Background
from tfbig.geometry.windows import Size
from tfbig.network import front_and_rest, keras_reader, objective, phase_layout
from tfbig.network.graph import Graph
from tfbig.plan.plan import Plan
from tfbig.plan.planner import Planner
from tfbig.plan.prepared_graph import Cuts, Options
from tfbig.streaming import labels
from tfbig.streaming.settings import Settings
from tfbig.system import keras_internals, replication, tensorflow_internals, xla

map_structure = keras.tree.map_structure


class Compiled(NamedTuple):
    """Loss and metrics that `compile` has set.

    Args:
        loss: Loss of Keras, or None.
        metrics: Metrics of Keras, or None.
        xla: Whether losses may be compiled.
        strips: Whether what computes strips is compiled too, where it can be.
    """

    loss: Any
    metrics: Any
    xla: bool
    strips: bool

    @classmethod
    def of(cls, model: keras.Model) -> Compiled:
        """Return what `compile` has set on a model; nothing before it is called."""
        loss = keras_internals.compiled_loss(model)
        metrics = keras_internals.compiled_metrics(model)
        asked = model.jit_compile
        return cls(loss, metrics, asked is not False, bool(asked))


class LossProgram(NamedTuple):
    """Program that computes losses and metrics.

    Args:
        program: The program.
        objective: Its losses and metrics.
        before: Graph of the model, before losses were added.
        labels: Positions of the labels, flat, that it needs after the inputs.
    """

    program: Program
    objective: objective.Objective
    before: Graph
    labels: list[int]


class Expected(NamedTuple):
    """Planner of steps on images behind handles, before there is data.

    Args:
        planner: The planner.
        before: The graph before the loss was added.
        images: Inputs that are images.
        labels: Prediction by input that holds its labels.
    """

    planner: Planner
    before: Graph
    images: list[int]
    labels: dict[int, int]

    def sizes(self, size: Sequence[int]) -> dict[int, Size]:
        """Return the size of each image among the inputs, labels included, in the order of the graph.

        Args:
            size: Rows, columns, ... of the images.
        """
        sizes = {i: self.before.to_graph_order(size) for i in self.images}
        extents = self.before.extents(sizes)
        return sizes | {i: extents[v] for i, v in self.labels.items()}


def fills_matrices(devices: Sequence[str]) -> bool:
    """Return whether the kernels of gradients of convolutions copy the inputs of every output pixel (im2col).

    TensorFlow's kernels for the CPU do, unless it uses those of oneDNN, as by default on processors with AVX-512.

    Args:
        devices: Devices that compute strips; none for the CPU.
    """
    on_cpu = all("CPU" in name.upper() for name in devices)
    return on_cpu and not tensorflow_internals.uses_onednn()


def _size_of(tensor: Any) -> Sequence[Any] | None:
    """Return planes, rows and columns of volumes or of volumes behind eager handles; None of other tensors."""
    if tensor.dtype == tf.string and hasattr(tensor, "numpy"):
        shape: Sequence[Any] = read_ahead.shape_of(tensor)
    else:
        shape = () if tensor.shape.rank is None else tensor.shape.as_list()
    return shape[1:-1] if len(shape) == 5 else None


class Programs:
    """The programs of a model, each built when it is first needed.

    Args:
        name: Name of the streamed model, for messages.
        model: The plain model.
        functional: The plain model as a functional model.
        split: The model in two parts, of which the first streams; None if the whole model streams.
        settings: Settings of the streamed model.
        model_bytes: Function that returns the bytes of the model between steps.

    Attributes:
        order: Axes of volumes, starting with the one that is cut into strips; None keeps their order.
        rank: Number of axes of its images, `[N, rows, ..., C]`.
        images_out: Whether every output of the streamed part is an image.
        bags: Whether its images are bags of instances.
        labels: Reader of its labels.
        compiles_plain: False if XLA has failed on a step of the plain model since `compile`.

    Raises:
        UnsupportedLayerError: A layer has no rule, or needs the whole image at once.
    """

    def __init__(
        self,
        name: str,
        model: keras.Model,
        functional: Any,
        split: front_and_rest.Split | None,
        settings: Settings,
        model_bytes: Callable[[], int],
    ) -> None:
        self.model = model
        self.functional = functional
        self.split = split
        self.settings = settings
        self.model_bytes = model_bytes
        self.order: tuple[int, ...] | None = None
        self._built: dict[Any, Any] = {}
        self._cuts: Cuts = {}
        self._owner: Any = None
        self.compiles_plain = True
        graph = self.read(training=True)
        self.bags = bool(graph.instance_shapes)
        self.rank = graph.spatial + 2
        self.images_out = all(graph.values[v].image for v in graph.outputs)
        self.labels = labels.Labels(name, self.rank, settings.source_dtype)

    def read(self, training: bool | None, dtypes: list[str] | None = None) -> Graph:
        """Return the graph of the streamed part.

        Args:
            training: As in `keras.Model.__call__`.
            dtypes: Element types of the inputs; by default those of the model.
        """
        model = self.model if self.split is None else self.split.front
        for layer in model.layers:
            if front_and_rest.has_activity_regularizer(layer):
                raise UnsupportedLayerError(
                    f"layer '{layer.name}' has an activity_regularizer, which needs its whole output at once. "
                    "Add the penalty to the loss, or regularise the weights."
                )
        return keras_reader.read(model, training, dtypes, self.order)

    def _choose_cut_axis(self, tensors: Sequence[tf.Tensor | tf.TensorSpec]) -> None:
        """Cut volumes along their longest axis; if it is not known, along the same axis as the previous ones.

        Images of two axes are always cut by rows, because files are read by rows.
        """
        if self.rank != 5 or self.bags:
            return
        sizes = [size for t in tensors if (size := _size_of(t)) is not None]
        if sizes and None not in sizes[0]:
            self.order = keras_reader.longest_first(sizes[0])

    def plan(
        self,
        shape: Sequence[int],
        training: bool,
        compiled: Compiled,
        with_loss: bool,
        background: Background | None = None,
    ) -> Plan:
        """Return the plan for one image size.

        Args:
            shape: Shape `(N, H, W, C)` of the first input.
            training: Whether to plan a training step.
            compiled: What `compile` has set.
            with_loss: Whether its loss is computed strip by strip.
            background: Background of all images of the size of the first input.
        """
        batch, *size = (int(n) for n in shape[: self.rank - 1])
        self._prepare([tf.TensorSpec((batch, *size, None))], compiled)
        state = self.order, self._trainable(), self.devices, self.model_bytes(), compiled.strips
        key = ("plan", training, with_loss, *state)
        expected = self._cached(key, lambda: self._expected(training, compiled, with_loss))
        sizes = expected.sizes(size)
        known = {} if background is None else {tuple(size): background}
        backgrounds = {i: known[each] for i, each in sizes.items() if each in known}
        return expected.planner.plan(batch, sizes, None, backgrounds)

    def forward(
        self,
        training: bool | None,
        tensors: Sequence[tf.Tensor],
        compiled: Compiled,
        always_streams: bool = False,
    ) -> BoundProgram:
        """Return the program that computes the outputs, bound to inputs.

        Args:
            training: As in `keras.Model.__call__`.
            tensors: Inputs, or specs of them.
            compiled: What `compile` has set.
            always_streams: Whether small images stream too, for results that are written strip by strip.
        """
        self._prepare(tensors, compiled)
        types = (t.dtype for t in tensors)
        state = self.order, self._trainable(), self.devices, compiled.strips
        key = (training, always_streams, *state, *types)

        def build() -> Program:
            graph = self.read(training, [self._dtype(t) for t in tensors])
            phase_layout.rewrite(graph)
            return self._program(graph, compiled, bool(training), always_streams)

        return BoundProgram(self._cached(key, build), tensors)

    def loss(
        self,
        training: bool,
        tensors: Sequence[tf.Tensor],
        label_pair: Sequence[Any],
        compiled: Compiled,
    ) -> LossProgram:
        """Return the program that computes losses and metrics.

        Args:
            training: Whether to compute a training step.
            tensors: Inputs.
            label_pair: Targets and sample weights.
            compiled: What `compile` has set.
        """
        self._prepare(tensors, compiled)
        targets, weights = (
            None if s is None else map_structure(self.labels.spec, s) for s in label_pair
        )
        types = (t.dtype for t in tensors)
        state = self.order, self._trainable(), self.devices, compiled.strips
        key = ("loss", training, *state, *types, repr((targets, weights)))

        def build() -> LossProgram:
            graph = self.read(training, [self._dtype(t) for t in tensors])
            graph.xla = compiled.xla
            specs = self._output_specs(graph)
            goal = objective.read(compiled.loss, compiled.metrics, specs, targets, weights)
            inputs, outputs = [*graph.inputs], [*graph.outputs]
            before = replace(graph, nodes=[*graph.nodes], inputs=inputs, outputs=outputs)
            taken = goal.add_to(graph, labels.flatten(targets), labels.flatten(weights))
            phase_layout.rewrite(graph)
            program = self._program(graph, compiled, training)
            return LossProgram(program, goal, before, taken)

        return self._cached(key, build)

    def _prepare(self, tensors: Sequence[tf.Tensor], compiled: Compiled) -> None:
        """Choose the axis to cut; drop all programs after a new `compile`: loss and layers may have changed."""
        self._choose_cut_axis(tensors)
        if compiled.loss is not self._owner:
            self._owner, self._built, self.compiles_plain = compiled.loss, {}, True

    def _cached(self, key: Any, build: Callable[[], Any]) -> Any:
        """Return the value built for a key; build it on the first call."""
        if key not in self._built:
            self._built[key] = build()
        return self._built[key]

    def _program(
        self, graph: Graph, compiled: Compiled, training: bool, always_streams: bool = False
    ) -> Program:
        """Return the program of a graph."""
        planner = self._planner(graph, compiled, training, always_streams)
        return Program(graph, planner, self.devices or (None,), self.settings.budget.folder)

    @property
    def devices(self) -> tuple[str, ...]:
        """Devices that compute strips: under a strategy, the device of the replica."""
        device = replication.replica_device()
        return self.settings.strip_devices if device is None else (device,)

    @property
    def device(self) -> str | None:
        """Device of what does not stream; None leaves it to TensorFlow."""
        return self.devices[0] if self.devices else None

    def _planner(
        self, graph: Graph, compiled: Compiled, training: bool, always_streams: bool = False
    ) -> Planner:
        """Return the planner of a graph, with the limits of the budget."""
        limits, options = self.settings.limits(shared=not self.devices), self._options(training)
        if always_streams or self.bags or self.split is not None:
            limits = replace(limits, plain=0)
        graph.even = bool(self.devices)
        graph.compiles = compiled.strips and self._compiles_strips()
        return Planner(graph, limits, options, self._cuts, self.split)

    def _compiles_strips(self) -> bool:
        """Return whether XLA can compile what computes strips: on one device that is named, without a strategy."""
        devices = self.settings.strip_devices
        alone = len(devices) == 1 and replication.replica_device() is None
        return alone and xla.works(devices[0])

    def _options(self, training: bool) -> Options:
        """Return what plans depend on besides the limits."""
        settings, devices = self.settings, self.devices
        return Options(
            strip_rows=settings.strip_rows,
            training=training,
            name=self.model.name,
            store=settings.store,
            model_bytes=self.model_bytes(),
            keeps=len(devices) == 1,
            im2col=fills_matrices(devices),
            rates=machine_rates.of(self.device, settings.budget.scratch),
            devices=max(len(devices), 1),
            replicas=settings.replicas,
        )

    def _trainable(self) -> tuple[bool, ...]:
        """Return `trainable` of layers and variables: users may change it, and it freezes BatchNormalization."""
        items = (self.model, *keras_internals.inner_layers(self.model), *self.model.variables)
        return tuple(item.trainable for item in items)

    def _dtype(self, tensor: tf.Tensor) -> str:
        return self.settings.source_dtype if tensor.dtype == tf.string else tensor.dtype.name

    def _output_specs(self, graph: Graph) -> Any:
        """Return the specs of the predictions, in the structure of the outputs."""
        values = [graph.values[v] for v in graph.outputs]
        unknown = [None] * (self.rank - 1)
        specs = [tf.TensorSpec([*unknown, v.channels], v.dtype) for v in values]
        structure = keras_internals.output_structure(self.functional)
        return keras.tree.pack_sequence_as(structure, specs)

    def _expected(self, training: bool, compiled: Compiled, with_loss: bool) -> Expected:
        """Return what plans of images behind handles have in common."""
        graph = self.read(training, [self.settings.source_dtype] * len(self.functional.inputs))
        graph.xla = compiled.xla
        images = [i for i in graph.inputs if graph.values[i].image]
        before, labels_of = replace(graph, nodes=[*graph.nodes]), {}
        if with_loss:
            outputs, label = [*graph.outputs], self.labels.by_handle
            goal = objective.expected(compiled.loss, self._output_specs(graph), label)
            taken = goal.add_to(graph, [label] * len(outputs), [])
            targets = [i for i in graph.inputs if graph.values[i].image and i not in images]
            labels_of = dict(zip(targets, [outputs[t] for t in taken], strict=True))
        phase_layout.rewrite(graph)
        return Expected(self._planner(graph, compiled, training), before, images, labels_of)
