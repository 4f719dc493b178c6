"""Train multiple instance learning end to end: an encoder and an aggregator, on whole bags."""

from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import tfbig
from tfbig import mil
from tfbig.cli import load_model, machine, open_run
from tfbig.cli import settings as command_line
from tfbig.cli.data import bags, splits
from tfbig.cli.tasks import classifier_training, evaluation
from tfbig.data.worker_shards import ALL_BATCHES
from tfbig.models import encoders
from tfbig.models.dtfd import DISTILLATIONS, DTFDMIL, PseudoBagLoss
from tfbig.models.pooling import ABMIL, MaxPooling, MeanPooling
from tfbig.models.self_attention import SelfAttentionMIL
from tfbig.models.transmil import TransMIL
from tfbig.results import figures, run_folder
from tfbig.training import Epochs

MODES = {
    "accumulate": "exact gradients, accumulated over slices of --instances-at-once instances",
    "offload": "the same; the planner chooses slices and stores within the memory limits",
    "device": "plain Keras on whole bags, same data and seed",
    "unified": machine.UNIFIED,
    "frozen": "the encoder is not trained; features are computed when they are needed",
}
EXAMPLE = (
    "--task mil --model transmil --bags folder --data my_bags --encoder resnet18 "
    "--mode accumulate --instances-at-once 32 --out runs/mine"
)
AGGREGATORS = {
    "abmil": lambda s, n: ABMIL(n, s.hidden, name="abmil"),
    "gated": lambda s, n: ABMIL(n, s.hidden, gated=True, name="gated"),
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
    "attention": lambda s, n: SelfAttentionMIL(n, s.width, name="attention"),
    "mean": lambda s, n: MeanPooling(n, name="mean"),
    "max": lambda s, n: MaxPooling(n, name="max"),
}


def add_flags(add_data, add_training):
    """Add the flags of this task, in the groups of data and of training."""
    bags.add_flags(add_data)
    _add_model(add_data)
    _add_aggregator(add_data)
    classifier_training.add_flags(add_training)
    evaluation.add_flags(add_training)
    add_training(
        "--test-only",
        metavar="RUN",
        help="train nothing; evaluate the model of this run folder on the test bags",
    )


def _add_model(add):
    add(
        "--model",
        choices=list(AGGREGATORS),
        default="abmil",
        help="aggregator of the bag (default: %(default)s)",
    )
    add(
        "--encoder",
        choices=["small", "lenet", *encoders.RESNETS, "none"],
        default="small",
        help="network of an instance; none if bags hold features (default: %(default)s)",
    )
    add(
        "--encoder-weights",
        metavar="FILE",
        help="file with initial weights of the encoder (default: random)",
    )
    add(
        "--mean",
        type=float,
        nargs="+",
        default=0.0,
        help="mean of each channel divided by 255, for a ResNet (default: %(default)s)",
    )
    add(
        "--std",
        type=float,
        nargs="+",
        default=1.0,
        help="standard deviation of each channel divided by 255, for a ResNet (default: %(default)s)",
    )


def _add_aggregator(add):
    number = command_line.count
    add(
        "--hidden",
        type=number,
        default=128,
        help="units of the attention layer (default: %(default)s)",
    )
    add(
        "--width",
        type=number,
        default=512,
        help="number of reduced features, of dtfd, transmil and attention (default: %(default)s)",
    )
    add("--pseudo-bags", type=number, default=4, help="pseudo-bags of dtfd (default: %(default)s)")
    add(
        "--distillation",
        choices=DISTILLATIONS,
        default="AFS",
        help="feature distillation of dtfd (default: %(default)s)",
    )
    add("--two-tiers", action="store_true", help="dtfd: train each tier only with its own loss")
    add(
        "--norm",
        choices=[*mil.NORMS, "none"],
        default="exact",
        help="BatchNormalization of the encoder in training; none removes it (default: %(default)s)",
    )
    add(
        "--published",
        action="store_true",
        help="use the published training loop of ABMIL-ACC, for comparison; --mode accumulate only",
    )
    add(
        "--instances-at-once",
        type=number,
        default=8,
        help="largest number of instances of a slice; --mode accumulate and frozen only (default: %(default)s)",
    )


def train(settings):
    """Run a training from its settings, or an evaluation, and return the exit code."""
    least = settings.pseudo_bags if settings.model == "dtfd" else 1
    data = bags.large_enough(bags.load(settings), least)
    print(f"mode {settings.mode}, model {settings.model}, precision {settings.precision}")
    bags.print_counts(data)
    settings.class_names = list(
        data.classes
    )  # saved, so that evaluation and prediction use the same
    splits.check_failed(data.failed, settings.strict)
    with machine.scope():
        model, twin = make_model(settings, data)
        compile_both(model, twin, settings, data)
        plan, planned = print_plan(model, settings, data)
    if settings.dry_run:
        return 0

    folder = open_run.open_run(settings)
    splits.write_tables(data, folder)
    measured = {"mode": settings.mode}
    if settings.test_only:
        load_model.load_weights(twin, Path(settings.test_only) / "model.keras")
    else:
        measured |= fit_and_save(model, twin, data, folder, settings, plan) | planned
        if not machine.is_chief():
            return splits.exit_code([], folder)
        both = model, twin
        model, twin = machine.without_strategy(both, lambda: make_model(settings, data), folder)
    evaluation.write_results(_explainer(model, twin), data, folder, settings, measured)
    return splits.exit_code([], folder)


def fit_and_save(model, twin, data, folder, settings, plan):
    """Train, save the model and its learning curve, and return the measurements."""
    if plan:
        run_folder.write_text(folder / "plan.txt", f"{plan}\n")
    history = fit(model, twin, data, folder, settings)
    _, peak = run_folder.memory_bytes()
    run_folder.save_model(folder / "model.keras", twin)
    accuracy = _bag_prefix(settings) + "accuracy"
    labels = {"loss": "loss", accuracy: "accuracy"}
    figures.learning_curve(folder / "learning_curve.png", history, labels, "validation bags")
    measured = {key: history[-1][key] for key in ("loss", "val_loss", "seconds_per_step")}
    return {"epochs": len(history), **measured, "peak_bytes": peak}


def make_model(settings, data):
    """Return the model to train and the plain model to save; both are the same in mode device and for features."""
    keras.config.set_dtype_policy(settings.precision)
    keras.utils.set_random_seed(settings.seed)
    shape = data.train.bags[0].shape[1:]
    aggregator = AGGREGATORS[settings.model](settings, len(data.classes))
    if settings.encoder == "none":
        bag = keras.Input((None, *shape), name="bag")
        twin = keras.Model(bag, aggregator(bag), name=settings.model)
        return twin, twin
    has_norm = settings.norm != "none"
    encoder = encoders.make(settings.encoder, shape, settings.mean, settings.std, has_norm)
    if settings.encoder_weights:
        load_model.load_weights(encoder, settings.encoder_weights)
    encoder.trainable = settings.mode != "frozen"
    model = mil.MIL(
        encoder,
        aggregator,
        settings.instances_at_once if settings.mode in ("accumulate", "frozen") else None,
        norm=settings.norm if has_norm else "frozen",
        mode="published" if settings.published else "exact",
        budget=machine.budget(settings),
        devices=settings.devices,
    )
    machine.synchronize_norm(settings, model.twin)
    return (model.twin if machine.is_plain(settings) else model), model.twin


def compile_both(model, twin, settings, data):
    """Compile both models with one optimizer, so that training of the saved plain model can continue."""
    optimizer = classifier_training.make_optimizer(settings, steps_per_epoch(settings, data))
    entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    metrics = ["accuracy", tfbig.metrics.QuadraticWeightedKappa(len(data.classes))]
    weight = float(settings.accumulate if settings.sum else 1)
    loss, weights = entropy, [weight]
    if settings.model == "dtfd":
        loss = {"bag": entropy, "pseudo": PseudoBagLoss("mean" if settings.two_tiers else "sum")}
        weights = dict.fromkeys(loss, weight)
        metrics = {"bag": metrics}
    for each in dict.fromkeys((twin, model)):
        each.compile(optimizer, loss, loss_weights=weights, metrics=metrics)


def _bag_prefix(settings):
    """Return the prefix that Keras puts before the metrics of the bag."""
    return "bag_" if settings.model == "dtfd" else ""


def steps_per_epoch(settings, data):
    """Return the number of batches of all bags; the last may be smaller."""
    return -(-len(data.train.bags) // settings.batch_size)


def print_plan(model, settings, data):
    """Print the plan of a step on the largest bag, and return it with planned memory, if the model streams."""
    if not isinstance(model, mil.MIL):
        return None, {}
    plan, validation = (
        model.plan((batch, largest(part, sample), *model.instance_shape), learns)
        for batch, part, sample, learns in (
            (settings.batch_size, data.train, settings.sample, True),
            (1, data.val, settings.val_sample, False),
        )
    )
    print(f"\n{plan}\n", flush=True)
    return plan, machine.planned_bytes(plan, validation)


def largest(part, sample):
    """Return the number of instances of the largest bag of a split, or of its sample."""
    return max(mil.sample_size(bag, sample) for bag in part.bags)


def fit(model, twin, data, folder, settings):
    """Train from the last checkpoint, and return the history of all epochs."""
    weights = classifier_training.class_weights(data) if settings.class_weights else None
    monitor = "loss" if settings.monitor == "loss" else _bag_prefix(settings) + settings.monitor
    training = Epochs(
        steps_per_epoch(settings, data),
        lambda shard: dataset(data.train, settings, settings.sample, True, weights, shard),
        classifier_training.item_names(data.train.bags, data.train.labels),
    )
    validation = Epochs(
        len(data.val.bags),
        lambda shard: dataset(data.val, settings, settings.val_sample, shard=shard),
    )
    return classifier_training.fit_and_keep(
        model, twin, settings, folder, training, validation, f"val_{monitor}"
    )


def dataset(part, settings, sample=None, learns=False, weights=None, shard=ALL_BATCHES):
    """Return the bags of a split, weighted if classes have weights.

    Args:
        part: A `BagSet`.
        settings: Settings of the run.
        sample: Instances to draw from a bag, or None for all.
        learns: Whether bags are shuffled and augmented.
        weights: Weights of the classes, or None.
        shard: Batches of this worker, and the epoch to start with.
    """
    dense = machine.is_plain(settings) or settings.encoder == "none"
    data = mil.dataset(
        part.bags,
        part.labels,
        settings.batch_size if learns else 1,
        sample=sample,
        shuffle=learns,
        augment=learns and settings.augment,
        seed=settings.seed,
        shard=shard,
        like_sizes=settings.like_sizes,
        dense=dense,
    )
    both = dense and settings.model == "dtfd"  # plain Keras needs a label for each output

    def labelled(x, y):
        target = {"bag": y, "pseudo": y} if both else y
        return (x, target) if weights is None else (x, target, tf.gather(weights, y))

    return data.map(labelled)


def _explainer(model, twin):
    """Return the function from a bag to logits, attention and scores."""
    if isinstance(model, mil.MIL):
        return model.explain
    *_, aggregator = twin.layers

    def explain(bag):
        features = keras.ops.convert_to_tensor(bag.read(0, bag.shape[0])[None])
        for layer in twin.layers[1:-1]:
            features = layer(keras.ops.cast(features, keras.config.floatx()))
        parts = aggregator(features), aggregator.attention(features), aggregator.scores(features)
        logits, attention, scores = keras.tree.map_structure(lambda t: np.asarray(t)[0], parts)
        return {"logits": logits, "attention": attention, "scores": scores}

    return explain
