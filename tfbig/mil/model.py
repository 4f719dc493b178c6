"""`MIL`: an encoder and an aggregator, trained end to end on whole bags at the memory of a few instances."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfbig import sources
from tfbig.engine import keras_variables, traced_steps
from tfbig.mil import abmil_acc
from tfbig.network import front_and_rest
from tfbig.network.instances import Instances
from tfbig.streaming import gradient_step
from tfbig.streaming.model import StreamedModel
from tfbig.system import tf_errors
from tfbig.system.budget import Budget

NORMS = ("exact", "frozen", "per_slice")
MODES = ("exact", "published")


def bag_model(
    encoder: keras.Model,
    aggregator: keras.Layer,
    instance_shape: Sequence[int] | None = None,
    norm_slice: int | None = None,
) -> keras.Model:
    """The plain Keras model of bags `[N, n, ...]`: the aggregator of what the encoder makes of every instance.

    Args:
        encoder: takes one instance, `[batch, ...]`, to features `[batch, d]`.
        aggregator: takes a bag of features `[N, n, d]` to logits.
        instance_shape: of one instance, such as `(224, 224, 3)`; by default that of the encoder's input.
        norm_slice: see `tfbig.layers.Instances`.

    Raises:
        ValueError: the shape is not known.
    """
    shape = tuple(instance_shape or encoder.inputs[0].shape[1:])
    if None in shape:
        raise ValueError(
            f"encoder '{encoder.name}' takes instances of shape {shape}; a bag holds instances of one size. Pass "
            "instance_shape=(rows, columns, channels)."
        )
    bag = keras.Input((None, *shape), dtype=encoder.inputs[0].dtype, name="bag")
    features = Instances(encoder, norm_slice, name="instances")(bag)
    return keras.Model(bag, aggregator(features), name=f"{aggregator.name}_of_{encoder.name}")


@keras.saving.register_keras_serializable(package="tfbig")
class MIL(StreamedModel):
    """An encoder and an aggregator as one model of bags, trained end to end.

    A training step equals that of the whole bag: features slice by slice without a tape, one backward of the
    aggregator, which gives the gradient of the features, then the encoder slice by slice again, with the same dropout.
    (ABMIL-ACC, Andersson et al. 2022, runs the aggregator once for every slice and gives up BatchNormalization;
    GradCache, Gao et al. 2021, has the same two passes.)

    Args:
        encoder: a Keras model of one instance, `[batch, ...]` to `[batch, d]`.
        aggregator: a Keras layer from a bag of features `[N, n, d]` to logits, or to a dict of several.
        instances_at_once: slices hold at most so many; by default as many as the budget allows.
        instance_shape: of one instance, where the encoder takes any size.
        norm: what BatchNormalization of the encoder does in training. "exact": statistics of the whole bag, by sweeps
            of its own; "frozen": moving statistics, and its layers are not trained (sets their `trainable`);
            "per_slice": statistics of each slice, as in ABMIL-ACC, so that results depend on `instances_at_once`.
        mode: "exact", or "published": the loop of ABMIL-ACC as it was published, see `tfbig.mil.abmil_acc`, for
            comparison.
        budget, devices, source_dtype, store: as in `tfbig.stream`.

    Inputs are tensors `[N, n, ...]`, or handles `[N]` of bags (`tfbig.sources.Bag.handle`), which are read slice by
    slice. Bags of a batch have one size; for steps over bags of several sizes give the optimizer
    `gradient_accumulation_steps`.

    Memory: the features, `4 * N * n * d` bytes, what the aggregator takes, and a slice. With `norm="exact"` also what
    BatchNormalization needs of the whole bag, within the budget.

    Exactness: up to summation order (float64: relative 1e-10).

    Raises:
        ValueError: an argument is none that there is, or `mode="published"` with an aggregator that depends on the
            order of instances, which that loop changes.
        UnsupportedLayerError: as in `tfbig.stream`.

    Example:

    ```python
    model = tfbig.mil.MIL(encoder, ABMIL(2), instances_at_once=50)
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.fit(tfbig.mil.dataset(bags, labels), shuffle=False)
    ```
    """

    def __init__(
        self,
        encoder: keras.Model,
        aggregator: keras.Layer,
        instances_at_once: int | None = None,
        *,
        instance_shape: Sequence[int] | None = None,
        norm: str = "exact",
        mode: str = "exact",
        budget: Budget | None = None,
        devices: str | Sequence[str] | None = None,
        source_dtype: str = "uint8",
        store: str | None = None,
        **kwargs: Any,
    ) -> None:
        _check("norm", norm, NORMS)
        _check("mode", mode, MODES)
        norms = _norms(encoder)
        if norm == "frozen":
            for layer in norms:
                layer.trainable = False
        learns = any(layer.trainable for layer in norms)
        if mode == "published" and norm == "exact" and learns:
            raise ValueError(
                f"mode='published' has no exact BatchNormalization, which '{norms[0].name}' of '{encoder.name}' is; "
                "choose norm='per_slice', as its authors had, or norm='frozen'."
            )
        if instances_at_once is None and (norm == "per_slice" or mode == "published"):
            raise ValueError(f"norm='{norm}', mode='{mode}' need instances_at_once, their slice.")
        norm_slice = instances_at_once if norm == "per_slice" and learns else None
        twin = bag_model(encoder, aggregator, instance_shape, norm_slice)
        if mode == "published":
            _check_order(aggregator, twin.get_layer("instances").output)
        kwargs.setdefault("name", f"streamed_{twin.name}")
        super().__init__(
            twin,
            budget,
            instances_at_once,
            devices=devices,
            source_dtype=source_dtype,
            store=store,
            **kwargs,
        )
        self.norm = norm
        self.mode = mode

    def _obj_type(self) -> str:
        """As what Keras saves it: `layers` first, so that files of weights are those of the twin."""
        return "Functional"

    @property
    def encoder(self) -> keras.Model:
        return self.twin.get_layer("instances").model

    @property
    def aggregator(self) -> keras.Layer:
        return self.twin.layers[-1]

    @property
    def instances_at_once(self) -> int | None:
        return self.strip_rows

    @property
    def instance_shape(self) -> tuple[int, ...]:
        return tuple(self.twin.inputs[0].shape[2:])

    # ------------------------------------------------------------------ keras.Model

    def compute_gradients(self, data: Any) -> gradient_step.Gradients:
        data = self._of_outputs(data)
        if self.mode == "published":
            return abmil_acc.gradients(self, data)
        return super().compute_gradients(data)

    def test_step(self, data: Any) -> dict[str, Any]:
        return super().test_step(self._of_outputs(data))

    def _make_function(self, step_function: Any) -> Any:
        if self.mode == "published" and step_function == self.train_step:
            return tf_errors.unwrapped(keras.Model._make_function(self, step_function))
        return super()._make_function(step_function)

    def traced(self, step_function: Any) -> traced_steps.Traced:
        if self.mode == "published" and step_function != self.test_step:
            return traced_steps.Traced(step_function)
        return super().traced(step_function)

    def _build_trackers(self, data: Any) -> None:
        super()._build_trackers(self._of_outputs(data))

    def _of_outputs(self, data: Any) -> Any:
        """One label for a bag is that of every output."""
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        outputs = self._functional_twin._outputs_struct
        if isinstance(outputs, dict) and y is not None and not isinstance(y, dict):
            y = dict.fromkeys(outputs, y)
        return keras.utils.pack_x_y_sample_weight(x, y, sample_weight)

    def get_config(self) -> dict[str, Any]:
        config = {k: v for k, v in super().get_config().items() if k in _SHARED}
        return config | {
            "encoder": keras.saving.serialize_keras_object(self.encoder),
            "aggregator": keras.saving.serialize_keras_object(self.aggregator),
            "instances_at_once": self.instances_at_once,
            "instance_shape": self.instance_shape,
            "norm": self.norm,
            "mode": self.mode,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> MIL:
        config = dict(config)
        encoder, aggregator = (
            keras.saving.deserialize_keras_object(config.pop(key), custom_objects)
            for key in ("encoder", "aggregator")
        )
        return cls(encoder, aggregator, budget=Budget(**config.pop("budget")), **config)

    # ----------------------------------------------------------------------- tfbig

    def features(self, bags: Any) -> tf.Tensor:
        """What the encoder makes of every instance, `[N, n, d]`, as in inference.

        Args:
            bags: tensors `[N, n, ...]` or handles `[N]`.
        """
        tensors = self._flat_inputs(bags)
        self._settle(tensors)
        assert self._split is not None  # the aggregator never streams
        crossing = keras_variables.call(self._programs.forward(False, tensors), tensors)
        return front_and_rest.shaped(crossing, self._split.front.outputs)[0]

    @tf_errors.unwrapped
    def explain(self, bag: Any) -> dict[str, Any]:
        """What a bag is taken for, and because of which instances.

        Args:
            bag: a `Bag`, a path or an array `[n, ...]`, see `tfbig.sources.open_bag`.

        Returns:
            `logits`: `[classes]`, or a dict of such; `attention`: `[n]`, adds up to 1; `scores`: logits of every
            instance, `[n, classes]`. The last two are what the aggregator's methods of these names give.

        Raises:
            SourceError: the bag cannot be read, or its instances are not those of the model.
            ValueError: the aggregator has no such methods.
        """
        for method in ("attention", "scores"):
            if not hasattr(self.aggregator, method):
                raise ValueError(
                    f"aggregator '{self.aggregator.name}' ({type(self.aggregator).__name__}) has no method "
                    f"`{method}(bag)`, which says what it looked at; those of models/ have."
                )
        with sources.open_bag(bag).lent() as handle:
            bags = tf.constant([handle])
            features = tf_errors.or_with_less(self, lambda: self.features(bags))
        logits = self.aggregator(features, training=False)
        return {
            "logits": keras.tree.map_structure(_first, logits),
            "attention": _first(self.aggregator.attention(features)),
            "scores": _first(self.aggregator.scores(features)),
        }


_SHARED = ("budget", "device", "source_dtype", "store", "name")
"""Of the config of a streamed model, what this one has too."""


def _first(tensor: Any) -> np.ndarray:
    return np.asarray(keras.ops.convert_to_numpy(tensor))[0]


def _check(argument: str, value: Any, known: Sequence[str]) -> None:
    if value not in known:
        raise ValueError(f"{argument}={value!r}: expected one of {', '.join(map(repr, known))}.")


def _norms(encoder: keras.Model) -> list[Any]:
    inner = encoder._flatten_layers(include_self=False)
    return [layer for layer in inner if isinstance(layer, keras.layers.BatchNormalization)]


def _check_order(aggregator: Any, features: Any) -> None:
    """Refuses an aggregator that gives something else for a bag in another order."""
    shape, dtype = features.shape, keras.backend.standardize_dtype(features.dtype)
    numbers = np.random.default_rng(0).normal(size=(1, 8, *(n or 4 for n in shape[2:])))
    found, other = (
        keras.tree.flatten(aggregator(tf.constant(bag, dtype), training=False))
        for bag in (numbers, numbers[:, ::-1])
    )
    rounding = 1000 * float(tf.experimental.numpy.finfo(found[0].dtype.as_numpy_dtype).eps)
    for a, b in zip(found, other, strict=True):
        a, b = (np.asarray(t, "float64") for t in (a, b))
        if abs(a - b).max() > rounding * max(abs(a).max(), 1e-3):
            raise ValueError(
                f"aggregator '{aggregator.name}' ({type(aggregator).__name__}) depends on the order of the instances, "
                "which mode='published' changes: it puts the slice that it works on in front. Use mode='exact'."
            )
