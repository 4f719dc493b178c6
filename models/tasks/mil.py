"""Multiple instance learning end to end: an encoder and an aggregator, trained on whole bags."""

import dataclasses
import math
import sys
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import tfbig
from models import encoders
from models import settings as command_line
from models.dtfd import DISTILLATIONS, DTFDMIL, PseudoBagLoss
from models.pooling import ABMIL, MaxPooling, MeanPooling
from models.self_attention import SelfAttentionMIL
from models.tasks import bags, judge
from models.transmil import TransMIL
from tfbig import mil, optimizers, pictures, runfolder
from tfbig.windows import BestWindow

MODES = {
    "accumulate": "exact gradients, accumulated over slices of --instances-at-once instances",
    "offload": "the same, with slices and stores that the planner chooses within the memory given",
    "device": "plain Keras with whole bags, on the same data with the same seed",
    "frozen": "the encoder is not trained; its features are made on the fly",
}
EXAMPLE = (
    "python train.py --task mil --model transmil --bags folder --data my_bags --encoder resnet18 "
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
OPTIMIZERS = {
    "adam": lambda s, steps, o: keras.optimizers.Adam(s.lr, epsilon=s.epsilon, **o),
    "coupled_adam": lambda s, steps, o: optimizers.CoupledAdam(
        s.lr, l2=s.decay, epsilon=s.epsilon, **o
    ),
    "adamw": lambda s, steps, o: keras.optimizers.AdamW(s.lr, weight_decay=s.decay, **o),
    "demon_adamw": lambda s, steps, o: optimizers.DemonAdamW(
        s.lr, steps, weight_decay=s.decay, **o
    ),
    "lookahead_radam": lambda s, steps, o: optimizers.LookaheadRAdam(
        s.lr, weight_decay=s.decay, **o
    ),
}
KEPT = "kept.weights.h5"


def add_flags(add_data, add_training):
    """Flags of this task, in the groups of data and of training."""
    _add_bags(add_data)
    _add_model(add_data)
    _add_optimizer(add_training)
    _add_evaluation(add_training)


def _add_bags(add):
    number, share = command_line.count, command_line.positive
    add(
        "--bags",
        choices=["shapes", "digits", "pictures", "folder"],
        default="shapes",
        help="shapes: drawn tiles, a bag with a ring is positive; digits: QMNIST-bags from the IDX "
        "files of --data; pictures: Imagenette-bags from --data/train/CLASS and --data/val/CLASS; "
        "folder: --data/bags.csv with columns bag, label, split (default: %(default)s)",
    )
    add("--data", metavar="FOLDER", help="where digits, pictures or bags are")
    add(
        "--num-bags",
        nargs=3,
        type=number,
        default=[150, 30, 30],
        metavar=("TRAIN", "VAL", "TEST"),
        help="bags that are composed (default: 150 30 30)",
    )
    add("--instances", type=number, default=20, help="of a composed bag (default: %(default)s)")
    add(
        "--share",
        type=share,
        default=0.2,
        help="of the instances of a positive bag that are of the key class (default: %(default)s)",
    )
    add("--key", type=int, default=9, help="class of the keys (default: %(default)s)")
    add("--tile", type=number, help="rows and columns of a composed instance")
    add(
        "--foreground",
        type=share,
        help="tiles are kept of which at least this share is grey between 3 and 230",
    )
    add("--fill", action="store_true", help="white tiles in training bags smaller than --sample")
    add("--classes", type=number, help="of bags.csv (default: the largest label and 1)")


def _add_model(add):
    number = command_line.count
    add("--model", choices=list(AGGREGATORS), default="abmil", help="aggregator of the bag")
    add(
        "--encoder",
        choices=["small", "lenet", *encoders.RESNETS, "none"],
        default="small",
        help="of an instance; none where bags hold features (default: %(default)s)",
    )
    add("--encoder-weights", metavar="FILE", help="weights of the encoder to start from")
    add("--mean", type=float, nargs="+", default=0.0, help="of the channels, for a ResNet")
    add("--std", type=float, nargs="+", default=1.0, help="of the channels, for a ResNet")
    add("--hidden", type=number, default=128, help="rows of the attention (default: %(default)s)")
    add("--width", type=number, default=512, help="of reduced features (default: %(default)s)")
    add("--pseudo-bags", type=number, default=4, help="of dtfd (default: %(default)s)")
    add("--distillation", choices=DISTILLATIONS, default="AFS", help="of dtfd")
    add("--two-tiers", action="store_true", help="dtfd: each tier learns from its own loss alone")
    add(
        "--norm",
        choices=[*mil.NORMS, "none"],
        default="exact",
        help="BatchNormalization of the encoder in training; none takes it out (default: %(default)s)",
    )
    add(
        "--published",
        action="store_true",
        help="the loop of ABMIL-ACC as it was published, for comparison; --mode accumulate",
    )
    add(
        "--instances-at-once",
        type=number,
        default=8,
        help="slices of a bag hold at most so many; --mode accumulate, frozen (default: %(default)s)",
    )


def _add_optimizer(add):
    number, positive = command_line.count, command_line.positive
    add("--epochs", type=number, default=10, help="in all (default: %(default)s)")
    add("--batch-size", type=number, default=1, help="bags of a step, all of one size")
    add("--accumulate", type=number, default=1, help="steps of which gradients are averaged")
    add("--sum", action="store_true", help="gradients of --accumulate steps are added up instead")
    add("--optimizer", choices=list(OPTIMIZERS), default="adam", help="(default: %(default)s)")
    add("--lr", type=positive, default=1e-3, help="learning rate (default: %(default)s)")
    add("--epsilon", type=positive, default=1e-7, help="of adam and coupled_adam")
    add("--decay", type=float, default=0.0, help="of weights; coupled in coupled_adam")
    add("--clip", type=positive, help="global norm of the gradient")
    add(
        "--schedule",
        choices=["constant", "cosine", "exponential"],
        default="cosine",
        help="of the learning rate, by epochs (default: %(default)s)",
    )
    add("--rate", type=positive, default=0.955, help="factor of an epoch, for exponential")
    add("--demon-steps", type=number, help="of demon_adamw (default: the steps of the run)")
    add("--class-weights", action="store_true", help="of inverse frequency, adding up to 1")
    add("--augment", action="store_true", help="blur, colours, flips, turns: one set for a bag")
    add("--sample", type=positive, help="instances of a training bag: a number, or a share below 1")


def _add_evaluation(add):
    number, positive = command_line.count, command_line.positive
    add("--val-sample", type=positive, help="the same of a validation bag")
    add(
        "--eval-sample",
        type=positive,
        help="the same of a test bag, drawn --eval-repeats times (default: all instances)",
    )
    add("--eval-repeats", type=number, default=1, help="(default: %(default)s)")
    add(
        "--keep",
        choices=["last", "best", "window"],
        default="best",
        help="epoch that is tested: the last; the best by --monitor; or the best of the window of "
        "--window epochs with the best average, of those since a resume (default: %(default)s)",
    )
    add("--monitor", default="loss", choices=["loss", "accuracy", "qwk"], help="of validation")
    add("--window", type=number, default=15, help="epochs (default: %(default)s)")
    add(
        "--test-only",
        metavar="RUN",
        help="nothing is trained: the model of this run folder is judged on the test bags",
    )


def train(settings):
    """Data, model, plan, fit, results: a run from its settings."""
    data = _large_enough(bags.load(settings), settings)
    _print_data(settings, data)
    model, twin = make_model(settings, data)
    compile_both(model, twin, settings, data)
    planned = print_plan(model, settings, data)
    if settings.dry_run:
        return

    folder = command_line.open_folder(settings)
    runfolder.write_yaml(folder / runfolder.CONFIG, command_line.to_save(settings))
    measured = {"mode": settings.mode}
    if settings.test_only:
        twin.load_weights(Path(settings.test_only) / "model.keras")
    else:
        measured |= trained(model, twin, data, folder, settings, planned)
    judge.write_results(_explainer(model, twin), data, folder, settings, measured)


def trained(model, twin, data, folder, settings, planned):
    """Fits, saves the model and its learning curve; gives what was measured."""
    if planned:
        runfolder.write_text(folder / "plan.txt", f"{planned}\n")
    history = fit(model, twin, data, folder, settings)
    _, peak = runfolder.memory_bytes()
    runfolder.save_model(folder / "model.keras", twin)
    accuracy = "bag_accuracy" if settings.model == "dtfd" else "accuracy"
    labels = {"loss": "loss", accuracy: "accuracy"}
    pictures.learning_curve(folder / "learning_curve.png", history, labels, "validation bags")
    found = {key: history[-1][key] for key in ("loss", "val_loss", "seconds_per_step")}
    planned_bytes = {"planned_bytes": planned.peak_bytes} if planned else {}
    return {"epochs": len(history), **found, **planned_bytes, "peak_bytes": peak}


def make_model(settings, data):
    """What is trained and the plain model that is saved; the same in mode device and for features."""
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
        encoder.load_weights(settings.encoder_weights)
    encoder.trainable = settings.mode != "frozen"
    model = mil.MIL(
        encoder,
        aggregator,
        None if settings.mode in ("offload", "device") else settings.instances_at_once,
        norm=settings.norm if has_norm else "frozen",
        mode="published" if settings.published else "exact",
        budget=tfbig.Budget(settings.device_memory, settings.host_memory),
    )
    return (model.twin if settings.mode == "device" else model), model.twin


def compile_both(model, twin, settings, data):
    """One optimizer for both: what is saved is the plain model, and it can be trained on."""
    options = {"global_clipnorm": settings.clip}
    if settings.accumulate > 1:
        options["gradient_accumulation_steps"] = settings.accumulate
    steps = steps_per_epoch(settings, data) * settings.epochs // settings.accumulate
    optimizer = OPTIMIZERS[settings.optimizer](settings, settings.demon_steps or steps, options)
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
    if settings.resume:
        optimizer.build(twin.trainable_variables)  # else its state would be left out
        twin.load_weights(runfolder.checkpoint(settings.out))


def steps_per_epoch(settings, data):
    """Batches that hold all bags; the last may be smaller."""
    return -(-len(data.train.bags) // settings.batch_size)


def print_plan(model, settings, data):
    """The plan of a step on the largest bag, where the model streams."""
    if not isinstance(model, mil.MIL):
        return None
    sizes = [mil.sample_size(bag, settings.sample) for bag in data.train.bags]
    plan = model.plan((settings.batch_size, max(sizes), *model.instance_shape))
    print(f"\n{plan}\n", flush=True)
    return plan


def fit(model, twin, data, folder, settings):
    """Trains from the epoch after the last one in the history; gives the history of all epochs."""
    history = runfolder.read_csv(folder / runfolder.HISTORY) if settings.resume else []
    recorder = runfolder.Recorder(folder, twin, history)
    weights = _class_weights(data) if settings.class_weights else None
    done = len(history)
    training = dataset(data.train, settings, settings.sample, True, weights, first_epoch=done)
    model.fit(
        training,
        validation_data=dataset(data.val, settings, settings.val_sample, first_epoch=done),
        initial_epoch=done,
        epochs=settings.epochs,
        shuffle=False,
        callbacks=[recorder, *_schedule(settings), *_keeping(folder, settings, history)],
        verbose=1 if sys.stdout.isatty() else 2,
    )
    if settings.keep != "last":
        twin.load_weights(folder / KEPT)
    return recorder.history


def dataset(found, settings, sample=None, training=False, weights=None, first_epoch=0):
    """Bags of a split for `fit`, with a weight for each where classes have some."""
    dense = settings.mode == "device" or settings.encoder == "none"
    data = mil.dataset(
        found.bags,
        found.labels,
        settings.batch_size if training else 1,
        sample=sample,
        shuffle=training,
        augment=training and settings.augment,
        seed=settings.seed,
        first_epoch=first_epoch,
        dense=dense,
    )
    both = dense and settings.model == "dtfd"  # plain Keras wants a label for each output

    def labelled(x, y):
        target = {"bag": y, "pseudo": y} if both else y
        return (x, target) if weights is None else (x, target, tf.gather(weights, y))

    return data.map(labelled)


def _keeping(folder, settings, history):
    """The callback that keeps the weights of the epoch that `--keep` asks for, those before a resume included."""
    name = "val_bag_" if settings.model == "dtfd" and settings.monitor != "loss" else "val_"
    monitor = name + settings.monitor
    if settings.keep == "window":
        return [BestWindow(folder / KEPT, monitor, settings.window)]
    if settings.keep == "best":
        mode, best = ("min", min) if settings.monitor == "loss" else ("max", max)
        before = best((row[monitor] for row in history), default=None)
        return [
            keras.callbacks.ModelCheckpoint(
                folder / KEPT,
                monitor,
                mode=mode,
                save_best_only=True,
                save_weights_only=True,
                initial_value_threshold=before,
            )
        ]
    return []


def _schedule(settings):
    """The callback that sets the learning rate of an epoch."""
    rates = {
        "constant": lambda epoch, lr: settings.lr,
        "cosine": lambda epoch, lr: (
            settings.lr * (1 + math.cos(math.pi * epoch / settings.epochs)) / 2
        ),
        "exponential": lambda epoch, lr: settings.lr * settings.rate**epoch,
    }
    return [keras.callbacks.LearningRateScheduler(rates[settings.schedule])]


def _class_weights(data):
    """Of inverse frequency, adding up to 1."""
    counts = np.maximum(np.bincount(data.train.labels, minlength=len(data.classes)), 1)
    return np.float32(1 / counts / np.sum(1 / counts))


def _explainer(model, twin):
    """Logits, attention and scores of a bag, whatever was trained."""
    if isinstance(model, mil.MIL):
        return model.explain
    *_, aggregator = twin.layers

    def explain(bag):
        found = keras.ops.convert_to_tensor(bag.read(0, bag.shape[0])[None])
        for layer in twin.layers[1:-1]:
            found = layer(keras.ops.cast(found, keras.config.floatx()))
        parts = aggregator(found), aggregator.attention(found), aggregator.scores(found)
        logits, attention, scores = keras.tree.map_structure(lambda t: np.asarray(t)[0], parts)
        return {"logits": logits, "attention": attention, "scores": scores}

    return explain


def _large_enough(data, settings):
    """Bags that can be split into pseudo-bags; the others are named and left out."""
    least = settings.pseudo_bags if settings.model == "dtfd" else 1

    def checked(found):
        fits = [bag.shape[0] >= least for bag in found.bags]
        reason = f"cannot be split into {least} pseudo-bags; lower --pseudo-bags to use it."
        small = [
            (bag.name, f"{bag.name}: has {bag.shape[0]} instances, which {reason}")
            for bag, fit in zip(found.bags, fits, strict=True)
            if not fit
        ]
        if not any(fits):
            raise tfbig.SourceError(small[0][1])
        return mil.BagSet(
            tuple(bag for bag, fit in zip(found.bags, fits, strict=True) if fit),
            found.labels[fits],
            (*found.failed, *small),
        )

    return dataclasses.replace(
        data, **{split: checked(getattr(data, split)) for split in bags.SPLITS}
    )


def _print_data(settings, data):
    print(f"mode {settings.mode}, model {settings.model}, precision {settings.precision}")
    for split in bags.SPLITS:
        found = getattr(data, split)
        sizes = [bag.shape[0] for bag in found.bags]
        counts = np.bincount(found.labels, minlength=len(data.classes))
        kinds = ", ".join(f"{n} {name}" for n, name in zip(counts, data.classes, strict=True))
        print(f"{split}: {len(sizes)} bags of {min(sizes)} to {max(sizes)} instances ({kinds})")
    for name, reason in data.failed:
        print(f"left out {name}: {reason}", file=sys.stderr)
