"""Several replicas of a model, on the devices of one process or of several, under a strategy of tf.distribute.

A round gives every replica a batch of its own. Each computes the gradients of its own loss, with whatever layout its
images need: nothing is exchanged there, so no worker waits for the trace of another, and one that fails can say so
before others wait for it. Then gradients are added up over replicas, weighted by items, and all optimizers do the same.

    gradient = sum(items[r] * gradient[r] for r in replicas) / sum(items)

Moving statistics are the means of those of the replicas; generators of random numbers are the same in all.

Keras' own optimizers add up gradients too, but after they were clipped; here clipping sees the sum, as on one device.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfbig.engine import traced_steps
from tfbig.errors import WorkerError
from tfbig.streaming import gradient_step
from tfbig.system import replication, tf_errors
from tfbig.training.gradient_sums import Sums
from tfbig.training.single_process import Batches, as_numbers, items, traced

SUM = tf.distribute.ReduceOp.SUM


class Replicas:
    """One worker of a strategy, with one replica of the model or more; as `Single` otherwise.

    Args:
        model: compiled, made in the scope of the strategy.

    Raises:
        ValueError: its optimizer steps inside a training step.
    """

    splits = True

    def __init__(self, model: keras.Model) -> None:
        self.model = model
        self.strategy = model.distribute_strategy
        if getattr(model, "accumulate", None) is not None:
            raise ValueError(
                f"'{model.name}': with accumulate={model.accumulate} the optimizer steps inside a training step, where "
                "replicas cannot add up their gradients; pass accumulate=None."
            )
        with self.strategy.scope():
            replication.check(model.optimizer, model.loss)
        self.replicas = self.strategy.num_replicas_in_sync
        numbers = tf.function(lambda: self.strategy.run(_number), autograph=False)()
        ids = [int(i) for i in self._local(numbers)]
        self.own = range(ids[0], ids[-1] + 1)
        self.chief = self.own.start == 0
        self.alone = len(self.own) == self.replicas
        self._first = _Traced(traced(model, gradient_step.first(model)), self.strategy, ids[0])
        self._test = _Traced(traced(model, model.test_step), self.strategy, ids[0])
        self._sums = [Sums() for _ in self.own]
        self._found = list(self._sums)
        self._learned: list[bool] = []
        self._built = self._settled = False
        self._functions: dict[str, Any] = {}
        with self.strategy.scope():
            if not model.optimizer.built:
                model.optimizer.build(model.trainable_variables)

    def ready(self, batches: Batches, specs: Any) -> Callable[[], dict[str, Any]]:
        if not batches:
            self.nothing()
            return dict
        self._build(batches[0])
        run = tf_errors.unwrapped(self._first.ready(batches, specs))

        def half() -> dict[str, Any]:
            try:
                found = run()
            except tf.errors.OpError as error:
                if self.alone or "Collective" not in str(error):
                    raise
                raise _lost() from error  # while statistics were those of all
            self._found = list(self._sums)
            for place, (batch, (gradients, _)) in enumerate(zip(batches, found, strict=True)):
                if not self._settled:
                    self._learned = [g is not None for g in gradients]
                self._found[place] = self._sums[place].with_more(gradients, items(batch))
            logs = [logs for _, logs in found]
            bad = (own for own in logs if not math.isfinite(float(own.get("loss", 0.0))))
            return next(bad, logs[0])

        return half

    def _build(self, batch: Any) -> None:
        """Makes the variables of metrics, which cannot be made while replicas are traced."""
        if not self._built:
            self._built = True
            with self.strategy.scope():
                if hasattr(self.model, "traced"):
                    self._first.inner.layout(batch)
                else:
                    self.model._maybe_symbolic_build(data_batch=batch)

    def nothing(self) -> None:
        self._found = list(self._sums)

    def keep(self) -> None:
        self._sums = self._found

    def apply(self) -> None:
        self._settle()
        sums = [self._weighted(s) for s in self._sums]
        counts = [tf.constant(s.items, tf.float64) for s in self._sums]
        self._call("apply", self._stepped, self._spread(sums), self._spread(counts))
        self._sums = [Sums() for _ in self.own]

    def finalize(self) -> None:
        with self.strategy.scope():
            self.model.optimizer.finalize_variable_values(self.model.trainable_variables)

    def test(self, batches: Batches, specs: Any) -> Callable[[], dict[str, Any]]:
        if not batches:
            return dict
        run = tf_errors.unwrapped(self._test.ready(batches, specs))
        return lambda: run()[0]

    def results(self) -> dict[str, float]:
        with self.strategy.scope():
            return self._reached(lambda: as_numbers(self.model.get_metrics_result()))

    def values(self, variables: dict[str, Any]) -> dict[str, Any]:
        return self._reached(lambda: {name: v.value.numpy() for name, v in variables.items()})

    def agree(self, *flags: bool) -> tuple[bool, ...]:
        if self.alone:
            return flags
        own = [tf.constant([float(f) for f in flags])] * len(self.own)
        total = self._call("agree", self._total, self._spread([[t] for t in own]))
        return tuple(bool(n > 0) for n in self._local(total[0])[0].numpy())

    def shared(self, text: str, arrays: dict[str, np.ndarray]) -> tuple[str, dict[str, np.ndarray]]:
        if self.alone:
            return text, arrays
        about = json.dumps([text, [[n, a.dtype.str, a.shape] for n, a in arrays.items()]]).encode()
        size = int.from_bytes(self._broadcast(len(about).to_bytes(8, "little"), 8), "little")
        text, kinds = json.loads(self._broadcast(about, size))
        found = {}
        for name, kind, shape in kinds:
            dtype = np.dtype(kind)
            own = arrays[name].tobytes() if self.chief else b""
            data = self._broadcast(own, int(np.prod(shape, dtype=np.int64)) * dtype.itemsize)
            found[name] = np.frombuffer(data, dtype).reshape(shape)
        return text, found

    def sums(self) -> Sums:
        if not any(s.batches for s in self._sums) and self.alone:
            return Sums()
        counts = [[tf.constant(n, tf.float64) for n in (s.batches, s.items)] for s in self._sums]
        batches, number = (
            int(self._local(t)[0]) for t in self._call("counts", self._total, self._spread(counts))
        )
        if not batches:
            return Sums()
        self._settle()
        sums = self._spread([self._weighted(s) for s in self._sums])
        gradients = [self._local(t)[0] for t in self._call("sums", self._total, sums)]
        # Losses were divided by the number of replicas, which may be another one when training goes on.
        left = iter([g * tf.cast(self.replicas, g.dtype) for g in gradients])
        # More than one batch, or `Sums` would take them for those of one, unweighted.
        return Sums([next(left) if known else None for known in self._learned], 2, number)

    def set_sums(self, sums: Sums) -> None:
        self._learned = [g is not None for g in sums.gradients]
        self._settled = bool(self._learned)
        own = [None if g is None else g / tf.cast(self.replicas, g.dtype) for g in sums.gradients]
        first = Sums(own, sums.batches, sums.items)
        self._sums = [first if r == 0 else Sums() for r in self.own]

    # --------------------------------------------------------------------- private

    def _settle(self) -> None:
        """Agrees on which variables learn: a worker that had no batch yet does not know."""
        if not self._settled:
            own = self._learned or [False] * len(self.model.trainable_variables)
            self._learned, self._settled = list(self.agree(*own)), True

    def _weighted(self, sums: Sums) -> list[tf.Tensor]:
        """Sums over items for every variable that learns, zeros where a replica had nothing."""
        variables = self.model.trainable_variables
        known = sums.weighted() if sums.batches else [None] * len(variables)
        pairs = zip(known, variables, self._learned, strict=True)
        return [tf.zeros(v.shape, v.dtype) if g is None else g for g, v, learns in pairs if learns]

    def _stepped(self, sums: Any, count: Any) -> None:
        """In every replica: the same step of its optimizer."""

        def step(sums: list[tf.Tensor], count: tf.Tensor) -> None:
            total, *sums = _all_reduced([count, *sums])
            left = iter(sums)
            means = [next(left) if learns else None for learns in self._learned]
            # Keras has divided the losses by the number of replicas.
            share = total / self.replicas
            means = [None if g is None else g / tf.cast(share, g.dtype) for g in means]
            pairs = zip(means, self.model.trainable_variables, strict=True)
            self.model.optimizer.apply_gradients(pairs)
            moving = [v._value for v in _moving(self.model)]
            for variable, total in zip(moving, _all_reduced(moving), strict=True):
                variable.assign(total / self.replicas)
            # One that had no batch drew nothing: the first one always has.
            first = tf.cast(replication.number() == 0, tf.float64)
            seeds = [v._value for v in _seeds(self.model)]
            drawn = _all_reduced([tf.cast(v, tf.float64) * first for v in seeds])
            for variable, number in zip(seeds, drawn, strict=True):
                variable.assign(tf.cast(number, variable.dtype))

        with _summed(self.model.optimizer):
            self.strategy.run(step, args=(sums, count))

    def _total(self, tensors: Any) -> Any:
        def total(tensors: list[tf.Tensor]) -> Any:
            return _all_reduced(tensors)

        return self.strategy.run(total, args=(tensors,))

    def _broadcast(self, data: bytes, size: int) -> bytes:
        """Bytes of the chief, as numbers that every kind of device adds exactly: those of others are 0."""
        numbers = np.zeros(-(-size // 4), "<u4")
        if self.chief:
            numbers.view(np.uint8)[:size] = np.frombuffer(data, np.uint8)
        own = tf.constant(numbers, tf.float64)
        each = [[own if r == 0 else tf.zeros_like(own)] for r in self.own]
        (total,) = self._call("broadcast", self._total, self._spread(each))
        return self._local(total)[0].numpy().astype("<u4").tobytes()[:size]

    def _call(self, name: str, function: Callable[..., Any], *arguments: Any) -> Any:
        if name not in self._functions:
            self._functions[name] = tf.function(function, autograph=False, reduce_retracing=True)
        return self._reached(lambda: self._functions[name](*arguments))

    def _reached(self, work: Callable[[], Any]) -> Any:
        """What work gives that needs the other workers."""
        try:
            return work()
        except tf.errors.OpError as error:
            if self.alone:
                raise
            raise _lost() from error

    def _spread(self, values: Sequence[Any]) -> Any:
        """A value of each replica of this worker, as `strategy.run` takes it."""
        first = self.own.start

        def own(context: Any) -> Any:
            return values[context.replica_id_in_sync_group - first]

        return self.strategy.experimental_distribute_values_from_function(own)

    def _local(self, value: Any) -> Any:
        return self.strategy.experimental_local_results(value)


class _Traced:
    """A step on a batch for each replica, traced once for every combination of their layouts."""

    def __init__(
        self, inner: traced_steps.Traced, strategy: tf.distribute.Strategy, first: int
    ) -> None:
        self.inner, self.strategy, self.first = inner, strategy, first
        self._known: dict[Any, Any] = {}
        with strategy.scope():
            count = len(strategy.extended.worker_devices)
            self._devices = [replication.accelerator_of(place) for place in range(count)]

    def ready(self, batches: Batches, specs: Any) -> Callable[[], list[Any]]:
        inner = self.inner
        flat, kinds, empty = zip(*(inner.flat(b, specs) for b in batches), strict=True)
        layouts = []
        for place, (structure, own) in enumerate(zip(empty, flat, strict=True)):
            with replication.on(self._devices[place]):
                layouts.append(inner.layout(traced_steps.filled(structure, own)))
        key = tuple(layouts), repr(empty), repr(kinds)
        tensors = [t for own in flat for t in own]
        if key not in self._known:
            sizes = [len(own) for own in flat]
            self._known[key] = self._trace(layouts, empty, sizes, [k for own in kinds for k in own])
        return lambda: self._known[key](*tensors)

    def _trace(self, layouts: Any, empty: Any, sizes: list[int], kinds: list[Any]) -> Any:
        def run(*tensors: tf.Tensor) -> list[Any]:
            found: dict[int, Any] = {}

            def one() -> None:
                place = replication.number() - first
                if place >= len(layouts):
                    return  # nothing is left for this replica
                begin = sum(sizes[:place])
                data = traced_steps.filled(empty[place], tensors[begin : begin + sizes[place]])
                with replication.on(self._devices[place]), self.inner.using(*layouts[place]):
                    found[place] = self.inner.step(data)

            self.strategy.run(one)
            return [found[place] for place in range(len(layouts))]

        first = self.first
        function = tf.function(run, input_signature=kinds, autograph=False)
        return function.get_concrete_function()


def _lost() -> WorkerError:
    return WorkerError(
        "lost the other workers. Start all of them again with --resume; their own messages say why they ended."
    )


def _all_reduced(tensors: Sequence[Any]) -> list[tf.Tensor]:
    """Sums over replicas; what is exchanged together is of one element type.

    An argument of a function has no device, by which a worker with one replica goes: its copy has one.
    """
    context = tf.distribute.get_replica_context()
    found: dict[int, tf.Tensor] = {}
    for dtype in {t.dtype: None for t in tensors}:
        own = {i: tf.identity(t) for i, t in enumerate(tensors) if t.dtype == dtype}
        found |= zip(own, context.all_reduce(SUM, list(own.values())), strict=True)
    return [found[i] for i in range(len(tensors))]


def _number() -> tf.Tensor:
    return tf.constant(replication.number())


def _moving(model: keras.Model) -> Iterator[Any]:
    """Moving statistics: what layers that learn change besides."""
    for layer in model._flatten_layers(include_self=False):
        if isinstance(layer, keras.layers.BatchNormalization) and layer.trainable:
            yield from (layer.moving_mean, layer.moving_variance)


def _seeds(model: keras.Model) -> list[Any]:
    """Counters of what was drawn."""
    metrics = {id(v) for v in model.metrics_variables}
    return [v for v in model.variables if tf.as_dtype(v.dtype).is_integer and id(v) not in metrics]


@contextmanager
def _summed(optimizer: Any) -> Iterator[None]:
    """Gradients are sums over replicas already, which Keras' optimizers would add up once more."""
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    inner._all_reduce_sum_gradients = list
    try:
        yield
    finally:
        del inner._all_reduce_sum_gradients
