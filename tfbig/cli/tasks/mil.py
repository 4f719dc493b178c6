"""Train multiple instance learning end to end: an encoder and an aggregator, on whole bags."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tfbig import mil
from tfbig.cli import machine, paths
from tfbig.cli.data import bags
from tfbig.cli.data.run_data import Data
from tfbig.cli.settings.flag import flags_of
from tfbig.cli.settings.tasks import MILSettings
from tfbig.cli.tasks import encoder_weights, evaluation, fitting, risk_set_steps
from tfbig.cli.tasks.label_task import LabelTask, Predicted
from tfbig.cli.tasks.target import Row, Target
from tfbig.cli.tasks.task import Models, Plans
from tfbig.data.worker_shards import ALL_BATCHES, Shard
from tfbig.models import encoders, lora
from tfbig.models.abmilx import ABMILX
from tfbig.models.clam import CLAM, InstanceLoss
from tfbig.models.dsmil import DSMIL
from tfbig.models.dtfd import DTFDMIL, PseudoBagLoss
from tfbig.models.pathology_encoders import PATHOLOGY_ENCODERS
from tfbig.models.pooling import ABMIL, MaxPooling, MeanPooling
from tfbig.models.self_attention import SelfAttentionMIL, TransformerMIL
from tfbig.models.transmil import TransMIL

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
SLICED = ("accumulate", "frozen")
"""Values of `--mode` in which a bag goes through the encoder in slices of `--instances-at-once`."""
BAG_WEIGHTS = {"clam_sb": 0.7, "clam_mb": 0.7, "dsmil": 0.5}
"""Published weights of the loss of the bag, of aggregators where that of the second output has the rest."""


class MIL(LabelTask[MILSettings]):
    """Training and evaluation with `--task mil`.

    Attributes:
        loop: `mode` of `tfbig.mil.MIL`.
    """

    items = "bags"
    named = "model"
    loop = "exact"

    def resolved(self, settings: MILSettings) -> MILSettings:
        """Fill in scale and input of the encoder; in an evaluation, take what the training of the run decided."""
        settings = encoder_weights.with_scale(_of_features(super().resolved(settings)))
        return encoder_weights.with_input(settings)

    def opened(self, settings: MILSettings) -> Data:
        """Return the bags that are large enough."""
        _check_lora(settings)
        _check_norm(settings)
        least = settings.pseudo_bags if settings.model == "dtfd" else 1
        return bags.without_small_bags(bags.load(settings), least)

    def sizes(self, part: mil.BagSet) -> str:
        """Return the numbers of instances, in words."""
        sizes = [bag.shape[0] for bag in part.bags]
        return f"of {min(sizes)} to {max(sizes)} instances"

    def network(self, settings: MILSettings, data: Data, num_outputs: int) -> Models:
        """Return new models of an encoder and an aggregator."""
        return make_models(settings, data, num_outputs, self.loop)

    def loss(self, settings: MILSettings, target: Target) -> tuple[Any, Any]:
        """Return the losses of the bag and of a second output, and their weights."""
        second = SECOND_OUTPUTS.get(settings.model)
        if second is None:
            return super().loss(settings, target)
        of_bag, weight = target.loss(), fitting.loss_weight(settings)
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

    def metrics(self, settings: MILSettings, target: Target, data: Data) -> Any:
        """Return new metrics of the bag."""
        metrics = target.metrics(data)
        return {"bag": metrics} if settings.model in SECOND_OUTPUTS else metrics

    def prefix(self, settings: MILSettings) -> str:
        """Return what Keras puts before the metrics of the bag."""
        return "bag_" if settings.model in SECOND_OUTPUTS else ""

    def weights(self, settings: MILSettings, data: Data) -> npt.NDArray[np.float32] | None:
        """Return the weight of each training bag, or None without `--class-weights` and `--tile-weights`.

        It is that of its class, times its share of the mean number of tiles.
        """
        of_class = super().weights(settings, data)
        if of_class is None and not settings.tile_weights:
            return None
        part = data.train
        weights = np.ones(len(part.bags)) if of_class is None else of_class[part.labels]
        tiles = np.array([bag.shape[0] for bag in part.bags])
        return np.asarray(
            weights * tiles / tiles.mean() if settings.tile_weights else weights, np.float32
        )

    def is_dense(self, settings: MILSettings) -> bool:
        """Return whether the model reads tensors instead of handles."""
        return super().is_dense(settings) or settings.encoder == "none"

    def batch_size(self, settings: MILSettings) -> int:
        """Return 1: bags differ in size."""
        return 1

    def repeats(self, settings: MILSettings) -> int:
        """Return how often the test bags are sampled."""
        return settings.eval_repeats

    def plans(self, models: Models, settings: MILSettings, data: Data) -> Plans | None:
        """The plans of the largest bags, or of their samples."""
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

    def batches(
        self,
        settings: MILSettings,
        data: Data,
        part: mil.BagSet,
        shard: Shard = ALL_BATCHES,
        learns: bool = False,
        weights: npt.NDArray[np.float32] | None = None,
    ) -> tf.data.Dataset:
        """Return the bags of a split or samples of them, weighted if they have weights."""
        dense = self.is_dense(settings) and not risk_set_steps.by_risk_sets(settings)
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
            sample=settings.sample if learns else settings.val_sample,
            shuffle=learns,
            augment=learns and settings.augment,
            augment_each=learns and settings.augment_each,
            stain_jitter=settings.stain_jitter if learns else 0.0,
            seed=settings.seed,
            shard=shard,
            like_sizes=settings.like_sizes,
            dense=dense,
        ).map(labelled)

    def predicted(
        self,
        models: Models,
        settings: MILSettings,
        target: Target,
        part: mil.BagSet,
        repeat: int = 0,
    ) -> Predicted:
        """Predict the bags of a split, all instances or a sample of them."""
        return evaluation.predicted(target, explainer(models), part, settings, repeat)

    def first_columns(self, item: Any) -> Row:
        """Return the name of a bag and the number of its instances."""
        return {"bag": item.name, "instances": item.shape[0]}

    def draw(
        self,
        models: Models,
        settings: MILSettings,
        target: Target,
        data: Data,
        folder: Path,
        predicted: Predicted,
    ) -> None:
        """Draw the attention of test bags."""
        evaluation.draw_maps(target, explainer(models), data, folder, predicted)


def _of_features(settings: MILSettings) -> MILSettings:
    """Drop the encoder if the bags hold features.

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
    """Build models; both are the same in mode device and for features."""
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
    _check_tile(settings, shape)
    encoder = encoders.make(settings.encoder, shape, **scale, norm=has_norm)
    is_trained = settings.mode != "frozen" and settings.lora is None
    encoder_weights.load(encoder, settings, is_trained)
    encoder.trainable = settings.mode != "frozen"
    _add_lora(encoder, settings)
    model = mil.MIL(
        encoder,
        aggregator,
        settings.instances_at_once if settings.mode in SLICED else None,
        norm=settings.norm if has_norm else "frozen",
        mode=loop,
        budget=machine.budget(settings),
        devices=settings.devices,
    )
    machine.synchronize_norm(settings, model.twin)
    return Models(model.twin if machine.is_plain(settings) else model, model.twin)


def _check_tile(settings: MILSettings, shape: tuple[int, ...]) -> None:
    """Check that an encoder of pathology can read tiles of `shape`, `(H, W, 3)`.

    Raises:
        FlagError: It cannot.
    """
    entry = PATHOLOGY_ENCODERS.get(settings.encoder)
    if entry is None:
        return
    patch = entry.network.patch
    if len(shape) != 3 or any(n % patch for n in shape[:2]):
        raise paths.FlagError(
            f"--encoder {settings.encoder}: cannot read instances of shape {shape}; expected tiles [H, W, 3] whose "
            f"sides are multiples of {patch}. Use --encoder-input published, or such a --tile."
        )


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
        raise paths.FlagError(
            f"--lora {settings.lora}: --encoder {settings.encoder}: {error}"
        ) from error
    print(f"LoRA of rank {settings.lora}: {count:,} of {encoder.count_params():,} parameters")


def _check_norm(settings: MILSettings) -> None:
    """Check that there are slices, if BatchNormalization has the statistics of one.

    Raises:
        FlagError: There are none.
    """
    sliced = settings.mode in SLICED or settings.encoder == "none"
    if settings.norm == "per_slice" and not sliced:
        raise paths.FlagError(
            f"--norm per_slice: has the statistics of a slice of --instances-at-once, which --mode {settings.mode} "
            f"does not have. Use --mode {' or '.join(SLICED)}, or another --norm."
        )


def _check_lora(settings: MILSettings) -> None:
    """Check that `--lora` has an encoder to train.

    Raises:
        SourceError: It is frozen.
    """
    if settings.lora is not None and settings.mode == "frozen":
        raise paths.FlagError(
            f"--lora {settings.lora}: --mode frozen trains no encoder. Remove one of them."
        )


def largest(part: mil.BagSet, sample: float | None) -> int:
    """The number of instances of the largest bag of a split, or of its sample."""
    return max(mil.sample_size(bag, sample) for bag in part.bags)


def explainer(models: Models) -> evaluation.Explain:
    """Return the function from a bag to logits, attention and scores."""
    if isinstance(models.model, mil.MIL):
        explain_streamed: evaluation.Explain = models.model.explain
        return explain_streamed
    return explainer_of_twin(models.twin)


def explainer_of_twin(twin: Any) -> evaluation.Explain:
    """The function from a bag to logits, attention and scores of a plain model, which reads it whole.

    The last layer of the model is the aggregator.
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
