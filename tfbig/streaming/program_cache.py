"""What a streamed model runs on data of one kind: read, planned and kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import keras
import tensorflow as tf

from tfbig.engine import machine_rates
from tfbig.engine.program import Program
from tfbig.errors import UnsupportedLayerError
from tfbig.network import front_and_rest, keras_reader, objective, phase_layout
from tfbig.network.graph import Graph
from tfbig.plan.plan import Plan
from tfbig.plan.planner import Planner
from tfbig.plan.split_planner import SplitPlanner
from tfbig.streaming import labels
from tfbig.system import backend, replication
from tfbig.system.budget import DEFAULT_STRIPS, HOST_SHARE, Budget
from tfbig.units import ITEMSIZE

map_structure = keras.tree.map_structure

STORES = ("bfloat16", "float16", "float32")
"""Element types in which images may be kept."""


@dataclass(frozen=True)
class Settings:
    """How a model streams, see `tfbig.stream`; `replicas` share the memory and the disk of the machine."""

    budget: Budget
    strip_rows: int | None
    devices: tuple[str, ...]
    source_dtype: str
    store: str | None
    replicas: int = 1

    def __post_init__(self) -> None:
        """Refuses what no image could stream with."""
        if not isinstance(self.budget, Budget):
            raise TypeError(f"expected budget=tfbig.Budget(host=...), received {self.budget!r}.")
        rows = self.strip_rows
        if rows is not None and (not isinstance(rows, int) or rows < 1):
            raise ValueError(f"strip_rows={rows!r}: expected a number of rows, 1 or more.")
        if self.store not in (None, *STORES):
            raise ValueError(f"store={self.store!r}: expected None or one of {STORES}.")
        if self.source_dtype not in ITEMSIZE:
            raise ValueError(
                f"source_dtype={self.source_dtype!r}: expected one of {', '.join(ITEMSIZE)}."
            )

    @property
    def strip_bytes(self) -> tuple[int, bool]:
        """Bytes for strips, and whether they are a limit."""
        if self.budget.device_bytes is not None:
            return self.budget.device_bytes, True
        if any("GPU" in name for name in self.devices):
            return int(0.8 * backend.accelerator_bytes()), True
        return min(DEFAULT_STRIPS, self.budget.host_bytes // self.replicas // HOST_SHARE), False


class Programs:
    """The programs of a model, each made when it is first asked for.

    Args:
        name: of the streamed model, for messages.
        model: the plain one.
        functional: the plain one as a functional model.
        cut: where the part that streams ends; None if all of it does.
        settings: how it streams.
        model_bytes: gives the bytes that the model takes between steps.

    Attributes:
        order: axes of volumes, the one that is cut first; None as they are.
        rank: number of axes of its images, `[N, rows, ..., C]`.
        images_out: whether every output of what streams is an image.
        bags: whether its images are bags of instances.
        labels: how its labels are read.
        xla: whether losses may be compiled.

    Raises:
        UnsupportedLayerError: a layer has no rule, or needs the whole image at once.
    """

    def __init__(
        self,
        name: str,
        model: keras.Model,
        functional: Any,
        cut: front_and_rest.Split | None,
        settings: Settings,
        model_bytes: Callable[[], int],
    ) -> None:
        self.model = model
        self.functional = functional
        self.cut = cut
        self.settings = settings
        self.model_bytes = model_bytes
        self.order: tuple[int, ...] | None = None
        self.xla = True
        self._kept: dict[Any, Any] = {}
        self._owner: Any = None
        graph = self.read(training=True)
        self.bags = bool(graph.instance_shapes)
        self.rank = graph.spatial + 2
        self.images_out = all(graph.values[v].image for v in graph.outputs)
        self.labels = labels.Labels(name, self.rank, settings.source_dtype)

    def read(self, training: bool | None, dtypes: list[str] | None = None) -> Graph:
        """The graph of what streams."""
        model = self.model if self.cut is None else self.cut.front
        for layer in model.layers:
            if front_and_rest.penalises(layer):
                raise UnsupportedLayerError(
                    f"layer '{layer.name}' has an activity_regularizer, which needs its whole output at once. "
                    "Put the penalty into the loss, or regularise the weights."
                )
        return keras_reader.read(model, training, dtypes, self.order)

    def turn(self, tensors: Sequence[tf.Tensor | tf.TensorSpec]) -> None:
        """Volumes are cut along their longest axis, if it is known: else as the last ones were.

        Images of two axes are not: their files are read by rows.
        """
        sizes = [t.shape[1:-1].as_list() for t in tensors if t.shape.rank == 5]
        if sizes and not self.bags and None not in sizes[0]:
            self.order = keras_reader.longest_first(sizes[0])

    def plan(self, shape: Sequence[int], training: bool, loss: Any) -> Plan:
        """The plan for one image size.

        Args:
            shape: `(N, H, W, C)` of the first input.
            training: the plan of a training step.
            loss: of Keras' `compile`, where it is computed strip by strip.
        """
        batch, *size = (int(n) for n in shape[: self.rank - 1])
        self.turn([tf.TensorSpec((batch, *size, None))])
        graph = self.read(training, [self.settings.source_dtype] * len(self.functional.inputs))
        sizes = {i: graph.turned(size) for i in graph.inputs if graph.values[i].image}
        if loss is not None:
            extents = graph.extents(sizes)
            predicted = [extents[v] for v in graph.outputs]
            label = self.labels.by_handle
            goal = objective.expected(loss, self._output_specs(graph), label)
            taken = goal.add_to(graph, [label] * len(predicted), [])
            targets = [i for i in graph.inputs if graph.values[i].image and i not in sizes]
            sizes |= dict(zip(targets, [predicted[t] for t in taken], strict=True))
        phase_layout.rewrite(graph)
        return self._planner(graph, training).plan(batch, sizes)

    def forward(self, training: bool | None, tensors: Sequence[tf.Tensor]) -> Program:
        """What computes the outputs of inputs of these element types; `training` as in `network.read`."""
        key = (training, self.order, self._trained(), self.devices, *(t.dtype for t in tensors))

        def build() -> Program:
            graph = self.read(training, [self._dtype(t) for t in tensors])
            phase_layout.rewrite(graph)
            return self._runs(graph, bool(training))

        return self._once(key, build)

    def keep_for(self, owner: Any, xla: bool) -> None:
        """Reads the model again after another `compile`, which makes another loss: layers may have changed."""
        self.xla = xla
        if owner is not self._owner:
            self._owner, self._kept = owner, {}

    def loss(
        self, training: bool, tensors: Sequence[tf.Tensor], given: Sequence[Any], owners: Any
    ) -> tuple[Program, objective.Objective, list[int]]:
        """What computes losses and metrics, and which of the labels, flat, it takes after the inputs.

        Args:
            training: whether it learns.
            tensors: the inputs.
            given: targets and sample weights.
            owners: loss and metrics of Keras' `compile`.
        """
        targets, weights = (
            None if s is None else map_structure(self.labels.spec, s) for s in given
        )
        types = (t.dtype for t in tensors)
        known = self.order, self._trained(), self.devices
        key = ("loss", training, *known, *types, repr((targets, weights)))

        def build() -> tuple[Program, objective.Objective, list[int]]:
            graph = self.read(training, [self._dtype(t) for t in tensors])
            graph.xla = self.xla
            loss, metrics = owners
            goal = objective.read(loss, metrics, self._output_specs(graph), targets, weights)
            taken = goal.add_to(graph, labels.flatten(targets), labels.flatten(weights))
            phase_layout.rewrite(graph)
            return self._runs(graph, training), goal, taken

        return self._once(key, build)

    def _once(self, key: Any, build: Callable[[], Any]) -> Any:
        """What was built under a key before."""
        if key not in self._kept:
            self._kept[key] = build()
        return self._kept[key]

    def _runs(self, graph: Graph, training: bool) -> Program:
        folder = self.settings.budget.folder
        return Program(graph, self._planner(graph, training), self.devices or (None,), folder)

    @property
    def devices(self) -> tuple[str, ...]:
        """Where strips are worked on: under a strategy, each replica has its own."""
        own = replication.device()
        return self.settings.devices if own is None else (own,)

    def _planner(self, graph: Graph, training: bool) -> Planner:
        settings, budget = self.settings, self.settings.budget
        kind = Planner if self.cut is None else partial(SplitPlanner, self.cut)
        strips, firm = settings.strip_bytes
        devices, replicas = self.devices, settings.replicas
        return kind(
            graph,
            strips,
            budget.host_bytes // replicas,
            budget.disk_bytes // replicas,
            settings.strip_rows,
            training,
            name=self.model.name,
            store=settings.store,
            firm=firm,
            shared=not devices,
            model_bytes=self.model_bytes(),
            keeps=len(devices) == 1,
            rates=machine_rates.of(devices[0] if devices else None, budget.scratch),
            devices=max(len(devices), 1),
            replicas=replicas,
        )

    def _trained(self) -> tuple[bool, ...]:
        """Which layers learn: that may change at any time, and freezes the statistics of BatchNormalization."""
        return tuple(layer.trainable for layer in self.model._flatten_layers())

    def _dtype(self, tensor: tf.Tensor) -> str:
        return self.settings.source_dtype if tensor.dtype == tf.string else tensor.dtype.name

    def _output_specs(self, graph: Graph) -> Any:
        """Of predictions, in the structure of the outputs."""
        known = [graph.values[v] for v in graph.outputs]
        unknown = [None] * (self.rank - 1)
        specs = [tf.TensorSpec([*unknown, v.channels], v.dtype) for v in known]
        return keras.tree.pack_sequence_as(self.functional._outputs_struct, specs)
