"""Several replicas of a model, on the devices of one or several processes, under a tf.distribute strategy.

In a round every replica gets one batch. Each computes the gradients of its own loss, with the layout that its images
need: no data is exchanged there, so no worker waits for the trace of another, and a worker that fails can report it
before others wait for it. Then gradients are summed over replicas, weighted by items, and all optimizers make the same
update.

    gradient = sum(items[r] * gradient[r] for r in replicas) / sum(items)

Moving statistics are averaged over replicas; random generators are equal in all replicas.

The optimizers of Keras sum gradients too, but after clipping; here the sum is clipped, as on one device.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfbig.engine import traced_steps
from tfbig.streaming import gradient_step
from tfbig.system import keras_internals, replication, tf_errors, traces
from tfbig.training.collective import Collective, all_reduced, lost
from tfbig.training.gradient_sums import Sums
from tfbig.training.single_process import Batches, SecondPass, as_numbers, items, traced


class Replicas:
    """One worker of a strategy, with one or more replicas of the model, which was created in its scope.

    The interface is that of `Single`.

    Raises:
        ValueError: The optimizer updates the weights inside a training step.
    """

    two_phase = True
    prepare_second_pass: SecondPass | None = None

    def __init__(self, model: keras.Model) -> None:
        self.model = model
        self.strategy = model.distribute_strategy
        if getattr(model, "accumulate", None) is not None:
            raise ValueError(
                f"'{model.name}': with accumulate={model.accumulate} the optimizer updates the weights inside a "
                "training step, where replicas cannot sum their gradients; pass accumulate=None."
            )
        with self.strategy.scope():
            replication.check(model.optimizer, model.loss)
        self.collective = Collective(self.strategy)
        self.replicas = self.collective.replicas
        self.local_replicas = self.collective.local_replicas
        first = self.local_replicas.start
        gradients = gradient_step.gradient_function(model)
        self._first = _Traced(traced(model, gradients), self.strategy, first)
        self._test = _Traced(traced(model, model.test_step), self.strategy, first)
        self.accumulated = [Sums() for _ in self.local_replicas]
        self._has_gradient: list[bool] = []
        self._built = self._agreed = False
        self._apply = tf.function(self._apply_gradients, autograph=False, reduce_retracing=True)
        with self.strategy.scope():
            if not model.optimizer.built:
                model.optimizer.build(model.trainable_variables)

    def reset(self, steps: int) -> None:
        """Reset the metrics."""
        self.model.reset_metrics()

    def prepare(self, batches: Batches, specs: Any) -> Callable[[], dict[str, Any]]:
        """Return the traced first phase of a step, which computes gradients and returns logs."""
        if not batches:
            return dict
        self._build(batches[0])
        run = tf_errors.unwrapped(self._first.ready(batches, specs))

        def first_phase() -> dict[str, Any]:
            try:
                results = run()
            except tf.errors.OpError as error:
                if self.collective.single_worker or "Collective" not in str(error):
                    raise
                raise lost() from error  # while exchanging synchronized statistics
            sums = list(self.accumulated)
            for replica, (batch, (gradients, _)) in enumerate(zip(batches, results, strict=True)):
                if not self._agreed:
                    self._has_gradient = [g is not None for g in gradients]
                sums[replica] = sums[replica].with_more(gradients, items(batch))
            self.accumulated = sums
            logs = [logs for _, logs in results]
            bad = (each for each in logs if not math.isfinite(float(each.get("loss", 0.0))))
            return next(bad, logs[0])

        return first_phase

    def _build(self, batch: Any) -> None:
        """Create the variables of metrics, which is not possible while replicas are traced."""
        if not self._built:
            self._built = True
            with self.strategy.scope():
                if hasattr(self.model, "traced"):
                    self._first.inner.layout(batch)
                else:
                    keras_internals.build_for(self.model, batch)

    def apply(self) -> None:
        """Update the weights of all replicas with the mean gradients, and reset the sums."""
        self._agree_on_gradients()
        sums = [self._weighted(s) for s in self.accumulated]
        counts = [tf.constant(s.items, tf.float64) for s in self.accumulated]
        spread = self.collective.spread
        self.collective.or_lost(lambda: self._apply(spread(sums), spread(counts)))
        self.accumulated = [Sums() for _ in self.local_replicas]

    def finalize(self) -> None:
        """Set the final weights, such as the averages of an optimizer with `use_ema`."""
        with self.strategy.scope():
            self.model.optimizer.finalize_variable_values(self.model.trainable_variables)

    def prepare_test(self, batches: Batches, specs: Any, step: int) -> Callable[[], dict[str, Any]]:
        """Return the traced test step, which updates the metrics and returns logs."""
        if not batches:
            return dict
        run = tf_errors.unwrapped(self._test.ready(batches, specs))
        return lambda: run()[0]

    def results(self) -> dict[str, float]:
        """Return the metrics of all replicas since they were reset."""
        with self.strategy.scope():
            return self.collective.or_lost(lambda: as_numbers(self.model.get_metrics_result()))

    def metric_values(self, variables: dict[str, Any]) -> dict[str, Any]:
        """Return the values of metric variables, aggregated over all replicas."""
        return self.collective.or_lost(
            lambda: {name: v.value.numpy() for name, v in variables.items()}
        )

    def sums(self) -> Sums:
        """Return the accumulated gradients of all replicas."""
        if not any(s.batches for s in self.accumulated) and self.collective.single_worker:
            return Sums()
        counts = [
            [tf.constant(n, tf.float64) for n in (s.batches, s.items)] for s in self.accumulated
        ]
        batches, number = map(int, self.collective.sum(counts))
        if not batches:
            return Sums()
        self._agree_on_gradients()
        gradients = self.collective.sum([self._weighted(s) for s in self.accumulated])
        # Losses were divided by the number of replicas, which may differ when training is resumed.
        left = iter([g * tf.cast(self.replicas, g.dtype) for g in gradients])
        # Two batches, however many there were: `Sums` takes the gradients of one batch to be unscaled.
        return Sums([next(left) if has else None for has in self._has_gradient], 2, number)

    def set_sums(self, sums: Sums) -> None:
        """Set the accumulated gradients, on the first replica."""
        self._has_gradient = [g is not None for g in sums.gradients]
        self._agreed = bool(self._has_gradient)
        scaled = [
            None if g is None else g / tf.cast(self.replicas, g.dtype) for g in sums.gradients
        ]
        first = Sums(scaled, sums.batches, sums.items)
        self.accumulated = [first if r == 0 else Sums() for r in self.local_replicas]

    def set_local_sums(self, sums: Sequence[Sums]) -> None:
        """Set the accumulated gradients of each replica of this worker, computed outside of `prepare`."""
        self.accumulated = list(sums)
        if not self._agreed:
            self._has_gradient = [g is not None for g in sums[0].gradients]

    # --------------------------------------------------------------------- private

    def _agree_on_gradients(self) -> None:
        """Agree on the variables with gradients, which a worker without a batch so far does not know."""
        if not self._agreed:
            local = self._has_gradient or [False] * len(self.model.trainable_variables)
            self._has_gradient, self._agreed = list(self.collective.any(*local)), True

    def _weighted(self, sums: Sums) -> list[tf.Tensor]:
        """Return the sums over items for each variable with a gradient; zeros for a replica without batches."""
        variables = self.model.trainable_variables
        gradients = sums.weighted() if sums.batches else [None] * len(variables)
        triples = zip(gradients, variables, self._has_gradient, strict=True)
        return [tf.zeros(v.shape, v.dtype) if g is None else g for g, v, has in triples if has]

    def _apply_gradients(self, sums: Any, count: Any) -> None:
        """Make the same update of the weights in every replica."""

        def step(sums: list[tf.Tensor], count: tf.Tensor) -> None:
            total, *sums = all_reduced([count, *sums])
            left = iter(sums)
            means = [next(left) if has else None for has in self._has_gradient]
            # Keras has divided the losses by the number of replicas.
            share = total / self.replicas
            means = [None if g is None else g / tf.cast(share, g.dtype) for g in means]
            pairs = zip(means, self.model.trainable_variables, strict=True)
            self.model.optimizer.apply_gradients(pairs)
            moving = keras_internals.tensors_of(_moving(self.model))
            for variable, total in zip(moving, all_reduced(moving), strict=True):
                variable.assign(total / self.replicas)
            # A replica without a batch drew no numbers; the first replica always has a batch.
            first = tf.cast(replication.replica_index() == 0, tf.float64)
            seeds = keras_internals.tensors_of(_seeds(self.model))
            drawn = all_reduced([tf.cast(v, tf.float64) * first for v in seeds])
            for variable, number in zip(seeds, drawn, strict=True):
                variable.assign(tf.cast(number, variable.dtype))

        with keras_internals.without_gradient_sums(self.model.optimizer):
            self.strategy.run(step, args=(sums, count))


class _Traced:
    """Step on one batch for each replica, traced once for every combination of their layouts."""

    def __init__(
        self, inner: traced_steps.Traced, strategy: tf.distribute.Strategy, first: int
    ) -> None:
        self.inner, self.strategy, self.first = inner, strategy, first
        self._traces: dict[Any, Any] = {}
        with strategy.scope():
            count = len(strategy.extended.worker_devices)
            self._devices = [replication.accelerator_of(replica) for replica in range(count)]

    def ready(self, batches: Batches, specs: Any) -> Callable[[], list[Any]]:
        """Return the traced step on these batches."""
        inner = self.inner
        flat, kinds, empty = zip(*(inner.flat(b, specs) for b in batches), strict=True)
        layouts = []
        for replica, (structure, tensors_of) in enumerate(zip(empty, flat, strict=True)):
            with replication.use_device(self._devices[replica]):
                layouts.append(inner.layout(traced_steps.unflatten(structure, tensors_of)))
        key = tuple(layouts), repr(empty), repr(kinds)
        tensors = [t for each in flat for t in each]
        if key not in self._traces:
            sizes = [len(each) for each in flat]
            self._traces[key] = self._trace(
                layouts, empty, sizes, [k for each in kinds for k in each]
            )
        return lambda: self._traces[key](*tensors)

    def _trace(self, layouts: Any, empty: Any, sizes: list[int], kinds: list[Any]) -> Any:
        def run(*tensors: tf.Tensor) -> list[Any]:
            results: dict[int, Any] = {}

            def one() -> None:
                replica = replication.replica_index() - first
                if replica >= len(layouts):
                    return  # no batch for this replica
                begin = sum(sizes[:replica])
                data = traced_steps.unflatten(
                    empty[replica], tensors[begin : begin + sizes[replica]]
                )
                with (
                    replication.use_device(self._devices[replica]),
                    self.inner.using(*layouts[replica]),
                ):
                    results[replica] = self.inner.step(data)

            self.strategy.run(one)
            return [results[replica] for replica in range(len(layouts))]

        first = self.first
        function = tf.function(run, input_signature=kinds, autograph=False)
        return traces.concrete(function)


def _moving(model: keras.Model) -> Iterator[Any]:
    """Yield the moving statistics of trainable layers."""
    for layer in keras_internals.inner_layers(model):
        if isinstance(layer, keras.layers.BatchNormalization) and layer.trainable:
            yield from (layer.moving_mean, layer.moving_variance)


def _seeds(model: keras.Model) -> list[Any]:
    """Return the counters of the random generators."""
    metrics = {id(v) for v in model.metrics_variables}
    return [v for v in model.variables if tf.as_dtype(v.dtype).is_integer and id(v) not in metrics]
