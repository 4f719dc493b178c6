"""`MIL`: an encoder and an aggregator, trained end to end on whole bags at the memory of a few instances."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfbig import sources
from tfbig.choices import NORMS
from tfbig.engine import traced_steps
from tfbig.errors import UnsupportedLayerError
from tfbig.mil import abmil_acc
from tfbig.network import front_and_rest
from tfbig.network.instances import Instances
from tfbig.streaming import gradient_step
from tfbig.streaming.model import StreamedModel
from tfbig.streaming.twin_model import TwinModel
from tfbig.system import keras_internals, tf_errors
from tfbig.system.budget import Budget

MODES = ("exact", "published")


def bag_model(
    encoder: keras.Model,
    aggregator: keras.Layer,
    instance_shape: Sequence[int] | None = None,
    norm_slice: int | None = None,
) -> keras.Model:
    """Build the plain Keras model of bags: `aggregator(encoder(every instance))`, on the whole bag at once.

    Args:
        encoder: Keras model from instances `[batch, ...]` to features `[batch, d]`.
        aggregator: Keras layer from a bag of features `[N, n, d]` to logits.
        instance_shape: Shape of an instance, such as `(224, 224, 3)`; by default that of the encoder's input.
        norm_slice: Size of the slices that BatchNormalization normalises by themselves, see `tfbig.layers.Instances`;
            None for the statistics of the whole bag.

    Returns:
        A `keras.Model` from bags `[N, n, ...]` to logits.

    Raises:
        ValueError: The shape of an instance is not fully known.
        UnsupportedLayerError: The encoder is a subclassed model, whose input is not known.

    Example:
        >>> encoder = keras.Sequential([keras.Input((8, 8, 1)), keras.layers.Flatten(), keras.layers.Dense(4)])
        >>> model = tfbig.mil.bag_model(encoder, tfbig.mil.MeanPooling(classes=2))
        >>> model(np.zeros((1, 5, 8, 8, 1), "float32")).shape  # one bag of five tiles
        TensorShape([1, 2])
    """
    if not getattr(encoder, "inputs", None):
        raise UnsupportedLayerError(
            f"encoder '{encoder.name}' ({type(encoder).__name__}) is a subclassed model; expected a functional or "
            "Sequential keras.Model with keras.Input. Build it as keras.Model(inputs, outputs)."
        )
    shape = tuple(instance_shape or encoder.inputs[0].shape[1:])
    if None in shape:
        raise ValueError(
            f"encoder '{encoder.name}' accepts instances of shape {shape}, but a bag needs one known size. Pass "
            "instance_shape=(rows, columns, channels)."
        )
    bag = keras.Input((None, *shape), dtype=encoder.inputs[0].dtype, name="bag")
    features = Instances(encoder, norm_slice, name="instances")(bag)
    return keras.Model(bag, aggregator(features), name=f"{aggregator.name}_of_{encoder.name}")


@keras.saving.register_keras_serializable(package="tfbig")
class MIL(StreamedModel):
    """Encoder and aggregator as one model of bags, trained end to end at the memory of a few instances.

    A training step equals one on the whole bag: features are computed slice by slice without a tape, one backward pass
    of the aggregator gives the gradient of the features, and then the encoder runs slice by slice again, with the same
    dropout masks. GradCache (Gao et al. 2021) has the same two passes; ABMIL-ACC (Andersson et al. 2022) runs the
    aggregator once per slice and gives up BatchNormalization of the bag.

    Inputs are tensors `[N, n, ...]`, or handles `[N]` of bags (`tfbig.sources.Bag.handle`), which are read slice by
    slice. The bags of a batch have one size; for steps over bags of several sizes set `gradient_accumulation_steps` of
    the optimizer.

    Memory: the features, `4 * N * n * d` bytes, the aggregator, and one slice. With `norm="exact"` also what
    BatchNormalization needs of the whole bag, within the budget.

    Exactness: equal to the plain model up to summation order (float64: relative 1e-10).

    Args:
        encoder: Keras model from instances `[batch, ...]` to features `[batch, d]`.
        aggregator: Keras layer from a bag of features `[N, n, d]` to logits, or to a dict of several.
        instances_at_once: Largest number of instances in a slice; by default as many as the budget allows.
        instance_shape: Shape of an instance, if the encoder accepts any size.
        norm: BatchNormalization of the encoder in training. "exact": statistics of the whole bag, in sweeps of their
            own; "frozen": moving statistics, and its layers are not trained (sets their `trainable` to False);
            "per_slice": statistics of each slice, as in ABMIL-ACC, so that results depend on `instances_at_once`.
        mode: "exact", or "published" for the loop of ABMIL-ACC as published, for comparison; see `tfbig.mil.abmil_acc`.
        budget: As in `tfbig.stream`.
        devices: As in `tfbig.stream`.
        source_dtype: As in `tfbig.stream`.
        store: As in `tfbig.stream`.
        **kwargs: Options of `keras.Model`, such as `name`.

    Returns:
        The outputs of the aggregator, such as logits `[N, classes]`.

    Raises:
        ValueError: An argument is not one of the options, or `mode="published"` with an aggregator that depends on the
            order of the instances, which that loop changes.
        UnsupportedLayerError: As in `tfbig.stream`.

    Example:
        >>> keras.utils.set_random_seed(0)
        >>> encoder = keras.Sequential([keras.Input((8, 8, 1)), keras.layers.Flatten(), keras.layers.Dense(4)])
        >>> model = tfbig.mil.MIL(encoder, tfbig.mil.ABMIL(classes=2, hidden=4), instances_at_once=2)
        >>> bag = np.random.default_rng(0).integers(0, 256, (5, 8, 8, 1), "uint8")  # five tiles
        >>> batch = bag[None].astype("float32")
        >>> bool(np.allclose(model(batch), model.twin(batch), rtol=1e-4))  # equals the plain model
        True
        >>> sorted(model.explain(bag))
        ['attention', 'logits', 'scores']
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
        _check_option("norm", norm, NORMS)
        _check_option("mode", mode, MODES)
        norms = _norms(encoder)
        if norm == "frozen":
            for layer in norms:
                layer.trainable = False
        trainable_norm = any(layer.trainable for layer in norms)
        if mode == "published" and norm == "exact" and trainable_norm:
            raise ValueError(
                f"mode='published' has no exact BatchNormalization, but '{encoder.name}' has the layer "
                f"'{norms[0].name}'; choose norm='per_slice', as its authors did, or norm='frozen'."
            )
        if instances_at_once is None and (norm == "per_slice" or mode == "published"):
            raise ValueError(
                f"norm='{norm}', mode='{mode}' need the size of a slice; pass instances_at_once."
            )
        norm_slice = instances_at_once if norm == "per_slice" and trainable_norm else None
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
        """Return the type under which Keras saves the model; with it, weight files equal those of the twin."""
        return "Functional"

    @property
    def encoder(self) -> keras.Model:
        """Encoder of instances, a Keras model."""
        return self.twin.get_layer("instances").model

    @property
    def aggregator(self) -> keras.Layer:
        """Aggregator of features, a Keras layer."""
        return self.twin.layers[-1]

    @property
    def instances_at_once(self) -> int | None:
        """Largest number of instances in a slice, or None."""
        return self.settings.strip_rows

    @property
    def instance_shape(self) -> tuple[int, ...]:
        """Shape of an instance."""
        return tuple(self.twin.inputs[0].shape[2:])

    # ------------------------------------------------------------------ keras.Model

    def compute_gradients(self, data: Any) -> gradient_step.Gradients:
        """Return the gradients of a batch and its logs, see `tfbig.streaming.gradient_step`."""
        if self.mode == "published":
            return abmil_acc.gradients(self, self._with_labels(data))
        return super().compute_gradients(data)

    def _make_function(self, step_function: Any) -> Any:
        if self.mode == "published" and step_function == self.train_step:
            return TwinModel._make_function(self, step_function)
        return super()._make_function(step_function)

    def traced(self, step_function: Any) -> traced_steps.Traced:
        """Return a step function as traced; the published loop has no plan and is traced as it is."""
        if self.mode == "published" and step_function != self.test_step:
            return traced_steps.Traced(step_function)
        return super().traced(step_function)

    def _with_labels(self, data: Any) -> Any:
        """Copy the one label of a bag to every output of the aggregator."""
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        outputs = keras_internals.output_structure(self._functional_twin)
        if isinstance(outputs, dict) and y is not None and not isinstance(y, dict):
            y = dict.fromkeys(outputs, y)
        return keras.utils.pack_x_y_sample_weight(x, y, sample_weight)

    def get_config(self) -> dict[str, Any]:
        """Return the arguments of the model."""
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
        """Return a model from its config."""
        config = dict(config)
        encoder, aggregator = (
            keras.saving.deserialize_keras_object(config.pop(key), custom_objects)
            for key in ("encoder", "aggregator")
        )
        return cls(encoder, aggregator, budget=Budget(**config.pop("budget")), **config)

    # ----------------------------------------------------------------------- tfbig

    def features(self, bags: Any) -> tf.Tensor:
        """Return the features of every instance, `[N, n, d]`, computed as in inference.

        Args:
            bags: Tensors `[N, n, ...]` or handles `[N]`.
        """
        assert self._split is not None  # the aggregator never streams
        crossing = self._forward(bags, training=False).outputs()
        return front_and_rest.restore_shapes(crossing, self._split.front.outputs)[0]

    @tf_errors.unwrapped
    def explain(self, bag: Any) -> dict[str, Any]:
        """Return the prediction for a bag and the attention and scores of its instances.

        Args:
            bag: A `Bag`, a path or an array `[n, ...]`, see `tfbig.sources.open_bag`.

        Returns:
            A dict: `logits` `[classes]`, or a dict of such; `attention` `[n]`, which sums to 1; `scores` `[n,
            classes]`, the logits of each instance. The last two come from the aggregator's methods of these names.

        Raises:
            SourceError: The bag cannot be read, or its instances do not fit the model.
            ValueError: The aggregator does not have these methods.
        """
        for method in ("attention", "scores"):
            if not hasattr(self.aggregator, method):
                raise ValueError(
                    f"aggregator '{self.aggregator.name}' ({type(self.aggregator).__name__}) has no method "
                    f"`{method}(bag)`, which `explain` calls. Add one, or use an aggregator of tfbig.mil."
                )
        with sources.open_bag(bag).lent() as handle:
            bags = tf.constant([handle])
            features = tf_errors.retry_with_less_memory(self, lambda: self.features(bags))
        logits = self.aggregator(features, training=False)
        return {
            "logits": keras.tree.map_structure(_first, logits),
            "attention": _first(self.aggregator.attention(features)),
            "scores": _first(self.aggregator.scores(features)),
        }


_SHARED = ("budget", "devices", "source_dtype", "store", "name")
"""Entries of the config of a streamed model that a MIL model shares."""


def _first(tensor: Any) -> np.ndarray:
    return np.asarray(keras.ops.convert_to_numpy(tensor))[0]


def _check_option(argument: str, value: Any, options: Sequence[str]) -> None:
    if value not in options:
        raise ValueError(f"{argument}={value!r}: expected one of {', '.join(map(repr, options))}.")


def _norms(encoder: keras.Model) -> list[Any]:
    nested = keras_internals.inner_layers(encoder)
    return [layer for layer in nested if isinstance(layer, keras.layers.BatchNormalization)]


def _check_order(aggregator: Any, features: Any) -> None:
    """Raise a ValueError if the aggregator depends on the order of the instances."""
    shape, dtype = features.shape, keras.backend.standardize_dtype(features.dtype)
    numbers = np.random.default_rng(0).normal(size=(1, 8, *(n or 4 for n in shape[2:])))
    outputs, reversed_outputs = (
        keras.tree.flatten(aggregator(tf.constant(bag, dtype), training=False))
        for bag in (numbers, numbers[:, ::-1])
    )
    rounding = 1000 * float(tf.experimental.numpy.finfo(outputs[0].dtype.as_numpy_dtype).eps)
    for a, b in zip(outputs, reversed_outputs, strict=True):
        a, b = (np.asarray(t, "float64") for t in (a, b))
        if abs(a - b).max() > rounding * max(abs(a).max(), 1e-3):
            raise ValueError(
                f"aggregator '{aggregator.name}' ({type(aggregator).__name__}) depends on the order of the instances, "
                "which mode='published' changes: it puts the current slice first. Use mode='exact'."
            )
