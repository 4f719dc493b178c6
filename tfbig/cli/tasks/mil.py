"""Train multiple instance learning end to end: an encoder and an aggregator, on whole bags."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tfbig import SourceError, mil
from tfbig.cli import failure_log, machine, paths
from tfbig.cli.data import bags
from tfbig.cli.data.run_data import Data
from tfbig.cli.settings import target_settings
from tfbig.cli.settings.flag import flags_of
from tfbig.cli.settings.tasks import MILSettings
from tfbig.cli.tasks import encoder_weights, evaluation, fitting, risk_set_steps, targets
from tfbig.cli.tasks.target import Target
from tfbig.cli.tasks.task import Curve, History, Models, Plans, Task
from tfbig.data.worker_shards import ALL_BATCHES, Shard
from tfbig.models import encoders, lora
from tfbig.models.abmilx import ABMILX
from tfbig.models.clam import CLAM, InstanceLoss
from tfbig.models.dsmil import DSMIL
from tfbig.models.dtfd import DTFDMIL, PseudoBagLoss
from tfbig.models.pooling import ABMIL, MaxPooling, MeanPooling
from tfbig.models.self_attention import SelfAttentionMIL, TransformerMIL
from tfbig.models.transmil import TransMIL
from tfbig.training import Epochs

AGGREGATORS: dict[str, Callable[[MILSettings, int], Any]] = {
    "abmil": lambda s, n: ABMIL(n, s.hidden, name="abmil"),
    "gated": lambda s, n: ABMIL(n, s.hidden, gated=True, name="gated"),
    "abmil_relu": lambda s, n: ABMIL(n, s.hidden, activation="relu", name="abmil_relu"),
    "abmil_gelu": lambda s, n: ABMIL(
        n, s.hidden, activation="gelu", widths=(256, 128), name="abmil_gelu"
    ),
    "clam_sb": lambda s, n: CLAM(n, s.width, s.hidden, False, s.instance_samples, name="clam_sb"),
    "clam_mb": lambda s, n: CLAM(n, s.width, s.hidden, True, s.instance_samples, name="clam_mb"),
    "dsmil": lambda s, n: DSMIL(n, s.hidden, name="dsmil"),
    "abmilx": lambda s, n: ABMILX(n, s.width, name="abmilx"),
    "dtfd": lambda s, n: DTFDMIL(
        n,
        s.width,
        s.hidden,
        s.pseudo_bags,
        s.distillation,
        joint=not s.two_tiers,
        seed=s.seed,
        name="dtfd",
    ),
    "transmil": lambda s, n: TransMIL(n, s.width, name="transmil"),
    "transformer": lambda s, n: TransformerMIL(n, s.width, name="transformer"),
    "attention": lambda s, n: SelfAttentionMIL(n, s.width, name="attention"),
    "mean": lambda s, n: MeanPooling(n, name="mean"),
    "max": lambda s, n: MaxPooling(n, name="max"),
}

SECOND_OUTPUTS = {"clam_sb": "instances", "clam_mb": "instances", "dsmil": "max", "dtfd": "pseudo"}
"""Aggregators with two outputs: the bag, and this one, which has a loss of its own."""
BAG_WEIGHTS = {"clam_sb": 0.7, "clam_mb": 0.7, "dsmil": 0.5}
"""Published weights of the loss of the bag, of aggregators where that of the second output has the rest."""


class MIL(Task[MILSettings]):
    """Training and evaluation with `--task mil`.

    Attributes:
        loop: `mode` of `tfbig.mil.MIL`.
    """

    loop = "exact"

    def resolved(self, settings: MILSettings) -> MILSettings:
        """Return the settings with the scale that the encoder expects, and what an evaluated run decided."""
        target_settings.check(settings)
        if settings.test_only:
            settings = replace(settings, **targets.of_evaluated_run(settings))
        return encoder_weights.with_scale(_of_features(settings))

    def load(self, settings: MILSettings) -> Data:
        """Return the bags, and print what they are."""
        _check_lora(settings)
        least = settings.pseudo_bags if settings.model == "dtfd" else 1
        data = bags.large_enough(bags.load(settings), least)
        print(f"mode {settings.mode}, model {settings.model}, precision {settings.precision}")
        decided = targets.decided(settings, data)
        target = targets.of(replace(settings, **decided), data)
        bags.print_counts(data, targets.counter(target))
        return replace(data, decided={**data.decided, **decided})

    def models(self, settings: MILSettings, data: Data) -> Models:
        """Return new models, compiled with one optimizer."""
        target = targets.of(settings, data)
        models = make_models(settings, data, target.num_outputs, self.loop)
        batches = -(-len(data.train.bags) // settings.batch_size)
        optimizer = fitting.make_optimizer(settings, batches)
        loss, weights = _loss(settings, target)
        metrics = _metrics(settings, target, data)
        return fitting.compile_both(models, optimizer, loss, weights, lambda: metrics)

    def plans(self, models: Models, settings: MILSettings, data: Data) -> Plans | None:
        """Return the plans of the largest bags, or of their samples."""
        model = models.model
        if not isinstance(model, mil.MIL):
            return None
        training, validation = (
            model.plan((batch, largest(part, sample), *model.instance_shape), learns)
            for batch, part, sample, learns in (
                (settings.batch_size, data.train, settings.sample, True),
                (1, data.val, settings.val_sample, False),
            )
        )
        return Plans(training, validation)

    def fit(self, models: Models, settings: MILSettings, data: Data, folder: Path) -> History:
        """Train from the last checkpoint, and return the history of all epochs."""
        target, weights = targets.of(settings, data), bag_weights(settings, data)
        train, val = (
            replace(part, labels=target.labels(part, data)) for part in (data.train, data.val)
        )
        prefix = "" if settings.monitor == "loss" else _bag_prefix(settings)
        training = Epochs(
            steps_per_epoch(settings, data),
            lambda shard: dataset(train, settings, settings.sample, True, weights, shard),
            fitting.item_names(data.train.bags, data.train.labels),
        )
        validation = Epochs(
            len(data.val.bags),
            lambda shard: dataset(val, settings, settings.val_sample, shard=shard),
        )
        monitor = f"val_{prefix}{settings.monitor}"
        worker = risk_set_steps.worker_of(settings, _is_dense(settings))
        return fitting.fit_and_keep(models, settings, folder, training, validation, monitor, worker)

    def curve(self, settings: MILSettings) -> Curve:
        """Return what the learning curve shows."""
        prefix = _bag_prefix(settings)
        curves = targets.TARGETS[settings.target].curves
        labels = {name if name == "loss" else prefix + name: text for name, text in curves.items()}
        return Curve(labels, "validation bags")

    def write_results(
        self,
        models: Models,
        settings: MILSettings,
        data: Data,
        folder: Path,
        measured: Mapping[str, Any],
    ) -> None:
        """Write predictions, pictures, and last the metrics."""
        target, explain = targets.of(settings, data), _explainer(models)
        failure_log.write_readable(
            lambda rest: evaluation.write_results(
                target, explain, rest, folder, settings, measured
            ),
            data,
            folder,
            settings.strict,
        )


def _of_features(settings: MILSettings) -> MILSettings:
    """Return the settings without an encoder if the bags hold features.

    Raises:
        FlagError: An encoder was asked for.
    """
    if settings.bags != "features":
        return settings
    default = flags_of(MILSettings)["encoder"].default
    if settings.encoder not in (default, "none"):
        raise paths.FlagError(
            f"--encoder {settings.encoder}: bags of --bags features are features already. Leave it out, or use --bags "
            "slides."
        )
    return replace(settings, encoder="none")


def make_models(settings: MILSettings, data: Data, num_outputs: int, loop: str = "exact") -> Models:
    """Return new models; both are the same in mode device and for features."""
    keras.config.set_dtype_policy(settings.precision)
    keras.utils.set_random_seed(settings.seed)
    shape = data.train.bags[0].shape[1:]
    aggregator = AGGREGATORS[settings.model](settings, num_outputs)
    if settings.encoder == "none":
        bag = keras.Input((None, *shape), name="bag")
        twin = keras.Model(bag, aggregator(bag), name=settings.model)
        return Models(twin, twin)
    has_norm = settings.norm != "none"
    scale: dict[str, Any] = {"mean": settings.mean, "std": settings.std}
    encoder = encoders.make(settings.encoder, shape, **scale, norm=has_norm)
    is_trained = settings.mode != "frozen" and settings.lora is None
    encoder_weights.load(encoder, settings, is_trained)
    encoder.trainable = settings.mode != "frozen"
    _add_lora(encoder, settings)
    model = mil.MIL(
        encoder,
        aggregator,
        settings.instances_at_once if settings.mode in ("accumulate", "frozen") else None,
        norm=settings.norm if has_norm else "frozen",
        mode=loop,
        budget=machine.budget(settings),
        devices=settings.devices,
    )
    machine.synchronize_norm(settings, model.twin)
    return Models(model.twin if machine.is_plain(settings) else model, model.twin)


def _add_lora(encoder: keras.Model, settings: MILSettings) -> None:
    """Freeze all of an encoder but the changes of low rank that `--lora` asks for.

    Raises:
        SourceError: The encoder has no Dense layers.
    """
    if settings.lora is None:
        return
    try:
        count = lora.add_lora(encoder, settings.lora)
    except ValueError as error:
        raise SourceError(
            f"--lora {settings.lora}: --encoder {settings.encoder}: {error}"
        ) from error
    print(f"LoRA of rank {settings.lora}: {count:,} of {encoder.count_params():,} parameters")


def _check_lora(settings: MILSettings) -> None:
    """Check that `--lora` has an encoder to train.

    Raises:
        SourceError: It is frozen.
    """
    if settings.lora is not None and settings.mode == "frozen":
        raise SourceError(
            f"--lora {settings.lora}: --mode frozen trains no encoder. Remove one of them."
        )


def _loss(settings: MILSettings, target: Target) -> tuple[Any, Any]:
    """Return the losses of the outputs, and their weights."""
    of_bag, weight = target.loss(), fitting.loss_weight(settings)
    second = SECOND_OUTPUTS.get(settings.model)
    if second is None:
        return of_bag, [weight]
    losses = {
        "pseudo": PseudoBagLoss("mean" if settings.two_tiers else "sum"),
        "instances": InstanceLoss(settings.instance_loss, settings.subtyping),
        "max": of_bag,
    }
    loss = {"bag": of_bag, second: losses[second]}
    if settings.model not in BAG_WEIGHTS:
        return loss, dict.fromkeys(loss, weight)
    share = BAG_WEIGHTS[settings.model] if settings.bag_weight is None else settings.bag_weight
    return loss, {"bag": weight * share, second: weight * (1 - share)}


def _metrics(settings: MILSettings, target: Target, data: Data) -> Any:
    """Return the metrics of the bag."""
    metrics = target.metrics(data)
    return {"bag": metrics} if settings.model in SECOND_OUTPUTS else metrics


def _bag_prefix(settings: MILSettings) -> str:
    """Return the prefix that Keras puts before the metrics of the bag."""
    return "bag_" if settings.model in SECOND_OUTPUTS else ""


def steps_per_epoch(settings: MILSettings, data: Data) -> int:
    """Return the number of batches, or of risk sets, of all bags; the last may be smaller."""
    return -(-len(data.train.bags) // risk_set_steps.items_of_step(settings))


def _is_dense(settings: MILSettings) -> bool:
    """Return whether the model reads tensors instead of handles."""
    return machine.is_plain(settings) or settings.encoder == "none"


def largest(part: mil.BagSet, sample: float | None) -> int:
    """Return the number of instances of the largest bag of a split, or of its sample."""
    return max(mil.sample_size(bag, sample) for bag in part.bags)


def bag_weights(settings: MILSettings, data: Data) -> npt.NDArray[np.float32] | None:
    """Return the weight of each training bag: that of its class, times its share of the mean number of tiles.

    Args:
        settings: Settings of the run.
        data: Data of the run.

    Returns:
        Weights `[n]`, or None if neither `--class-weights` nor `--tile-weights` is set.
    """
    of_class = fitting.class_weights(settings, data)
    if of_class is None and not settings.tile_weights:
        return None
    part = data.train
    weights = np.ones(len(part.bags)) if of_class is None else of_class[part.labels]
    tiles = np.array([bag.shape[0] for bag in part.bags])
    return np.asarray(
        weights * tiles / tiles.mean() if settings.tile_weights else weights, np.float32
    )


def dataset(
    part: mil.BagSet,
    settings: MILSettings,
    sample: float | None = None,
    learns: bool = False,
    weights: npt.NDArray[np.float32] | None = None,
    shard: Shard = ALL_BATCHES,
) -> tf.data.Dataset:
    """Return the bags of a split, weighted if they have weights.

    Args:
        part: A `BagSet`.
        settings: Settings of the run.
        sample: Instances to draw from a bag, or None for all.
        learns: Whether bags are shuffled and augmented.
        weights: Weight of each bag, or None.
        shard: Batches of this worker, and the epoch to start with.
    """
    dense = _is_dense(settings) and not risk_set_steps.by_risk_sets(settings)
    # Plain Keras needs a label for each output.
    second = SECOND_OUTPUTS.get(settings.model) if dense else None

    def labelled(x: Any, y: Any) -> tuple[Any, ...]:
        weight = () if weights is None else (tf.cast(y[:, 1], tf.float32),)
        y = y if weights is None else tf.cast(y[:, 0], tf.int64)
        return x, {"bag": y, second: y} if second else y, *weight

    return mil.dataset(
        part.bags,
        part.labels if weights is None else np.stack([part.labels, weights], 1),
        risk_set_steps.items_of_step(settings) if learns else 1,
        sample=sample,
        shuffle=learns,
        augment=learns and settings.augment,
        augment_each=learns and settings.augment_each,
        stain_jitter=settings.stain_jitter if learns else 0.0,
        seed=settings.seed,
        shard=shard,
        like_sizes=settings.like_sizes,
        dense=dense,
    ).map(labelled)


def _explainer(models: Models) -> evaluation.Explain:
    """Return the function from a bag to logits, attention and scores."""
    if isinstance(models.model, mil.MIL):
        explain_streamed: evaluation.Explain = models.model.explain
        return explain_streamed
    return explainer_of_twin(models.twin)


def explainer_of_twin(twin: Any) -> evaluation.Explain:
    """Return the function from a bag to logits, attention and scores of a plain model, which reads it whole.

    Args:
        twin: Model whose last layer is the aggregator.
    """
    *_, aggregator = twin.layers

    def explain(bag: Any) -> dict[str, Any]:
        features = keras.ops.convert_to_tensor(bag.read(0, bag.shape[0])[None])
        for layer in twin.layers[1:-1]:
            features = layer(keras.ops.cast(features, keras.config.floatx()))
        parts = aggregator(features), aggregator.attention(features), aggregator.scores(features)
        logits, attention, scores = keras.tree.map_structure(lambda t: np.asarray(t)[0], parts)
        return {"logits": logits, "attention": attention, "scores": scores}

    return explain
