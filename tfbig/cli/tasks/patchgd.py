"""PatchGD: large images by a latent grid of their patches, approximate and at the memory of a few of them."""

from functools import partial
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import tfbig
from tfbig import SourceError, sources
from tfbig.cli import load_model, machine, open_run
from tfbig.cli import settings as command_line
from tfbig.cli.data import images, splits
from tfbig.cli.tasks import classifier_training, evaluation, warm_start
from tfbig.data.worker_shards import ALL_BATCHES
from tfbig.models import encoders, latent, series
from tfbig.patchgd import patch_sampling
from tfbig.results import figures, run_folder
from tfbig.training import Epochs

MODES = {
    "patchgd": "a latent grid of patches, of which a share learns at a time",
    "device": "plain Keras on whole images, with the same trunk and head, on the same data",
    "offload": "the same network streamed, exact, within the memory given",
    "unified": machine.UNIFIED,
}
EXAMPLE = (
    "--task patchgd --images digits --data mnist --canvas 512 --factors 1 9 --patch 128 "
    "--encoder mobilenetv2 --out runs/mine"
)
MAPS = 4
"""Test images whose latent grid is drawn."""


def add_flags(add_data, add_training):
    """Flags of this task, in the groups of data and of training."""
    images.add_flags(add_data)
    _add_model(add_data)
    classifier_training.add_flags(add_training, 16, 8, "images of a step, all of one size")
    _add_patchgd(add_training)
    add_training(
        "--test-only",
        metavar="RUN",
        help="nothing is trained: the model of this run folder is judged on the test images",
    )


def _add_model(add):
    number = command_line.count
    add(
        "--encoder",
        choices=[*encoders.TRUNKS, *encoders.NETWORKS, "series"],
        default="strided",
        help="of a patch; series: that of the paper for HAR (default: %(default)s)",
    )
    add(
        "--mean",
        type=float,
        nargs="+",
        default=0.0,
        help="of the channels, for a ResNet or MobileNet",
    )
    add(
        "--std",
        type=float,
        nargs="+",
        default=1.0,
        help="of the channels, for a ResNet or MobileNet",
    )
    add("--latent", type=number, default=64, help="numbers of a code; 256 as published")
    add(
        "--code",
        choices=["vector", "map"],
        help="of a patch: one, pooled, as published; map: that of the network without its pooling (default: map; of "
        "slides vector, as a head over all of their maps takes too long)",
    )
    add(
        "--head",
        choices=[*latent.HEADS, "series"],
        default="transformer",
        help="over the latent grid (default: %(default)s)",
    )
    add("--head-width", type=number, default=64, help="channels of the head; 256 as published")
    add(
        "--backbone",
        metavar="RUN",
        help="run folder of --mode device whose trunk the encoder starts from",
    )
    warm_start.add_flag(add)


def _add_patchgd(add):
    number = command_line.count
    add("--patch", type=number, default=128, help="rows and columns of a patch (default: 128)")
    add("--stride", type=number, help="from patch to patch (default: the patch)")
    add(
        "--sampling",
        type=_sampling,
        default=0.25,
        help="patches of an inner step: a share (0.25, 1.0), or a number (16) (default: 0.25)",
    )
    add("--inner-steps", type=number, help="of a step (default: until all patches were in a set)")
    add(
        "--inner-accumulate",
        type=_steps,
        default="all",
        help="inner steps whose gradients are averaged: a number, or all (default: all)",
    )
    add(
        "--sampler",
        choices=patch_sampling.SAMPLERS,
        default="shuffle",
        help="(default: %(default)s)",
    )
    add(
        "--encoder-scale",
        choices=patch_sampling.SCALES,
        default="published",
        help="of the encoder's gradient (default: %(default)s)",
    )
    add(
        "--filling-norm",
        choices=tfbig.patchgd.FILLINGS,
        default="published",
        help="BatchNormalization while Z is filled (default: %(default)s)",
    )
    add("--patches-at-once", type=number, help="that the encoder sees together")


def _sampling(text):
    return float(text) if "." in text else command_line.count(text)


def _steps(text):
    return text if text == "all" else command_line.count(text)


def train(settings):
    """Data, model, fit, results: a run from its settings; gives the exit code."""
    settings.warm_start = warm_start.epochs(settings)
    data = images.load(settings)
    print(f"mode {settings.mode}, encoder {settings.encoder}, precision {settings.precision}")
    images.print_counts(data)
    settings.class_names = list(data.classes)  # saved: others are judged and predicted by these
    splits.check_failed(data.failed, settings.strict)
    with machine.scope():
        model, twin = make_model(settings, data)
        compile_both(model, twin, settings, data)
        plan, planned = print_plan(model, settings, data)
    if settings.dry_run:
        return 0

    folder = open_run.open_run(settings)
    splits.write_notes(data, folder)
    measured = {"mode": settings.mode}
    if settings.test_only:
        twin.optimizer.build(twin.trainable_variables)  # the file has its state
        twin.load_weights(Path(settings.test_only) / "model.keras")
    else:
        measured |= trained(model, twin, data, folder, settings, plan) | planned
        if not machine.is_chief():
            return splits.exit_code([], folder)
        made = model, twin
        model, twin = machine.alone(made, lambda: _built(settings, data), folder)
    write_results(model, twin, data, folder, settings, measured)
    return splits.exit_code([], folder)


def _built(settings, data):
    """The same model again, compiled: the file of its weights has the state of the optimizer."""
    model, twin = make_model(settings, data)
    compile_both(model, twin, settings, data)
    twin.optimizer.build(twin.trainable_variables)
    return model, twin


def make_model(settings, data):
    """What is trained, and what is saved: the same but for a streamed model, of which the plain one is."""
    keras.config.set_dtype_policy(settings.precision)
    keras.utils.set_random_seed(settings.seed)
    shape = images.image_shape(data, any_size=settings.images == "slides" and not settings.side)
    if settings.encoder == "series":
        return _series(settings, shape, len(data.classes))
    scale = _scale(settings)
    if settings.mode != "patchgd":
        options = {"latent": settings.latent, "width": settings.head_width, **scale}
        plain = latent.baseline(
            settings.encoder, shape, len(data.classes), settings.head, **options
        )
        machine.of_all_replicas(settings, plain)
        if machine.is_plain(settings):
            return plain, plain
        budget = machine.budget(settings)
        big = tfbig.stream(plain, budget, devices=settings.devices, unsupported="device")
        return big, plain  # heads that do not stream are on whole tensors
    if settings.accumulate > 1 and settings.inner_accumulate != "all":
        raise SourceError(
            f"--accumulate {settings.accumulate}: gradients of several steps are added up, but with --inner-accumulate "
            f"{settings.inner_accumulate} the optimizer steps inside each. Use --inner-accumulate all."
        )
    patch = (settings.patch, settings.patch, shape[-1])
    settings.code = settings.code or ("vector" if settings.images == "slides" else "map")
    pooled = settings.code == "vector"
    encoder = encoders.make(settings.encoder, patch, latent=settings.latent, pooled=pooled, **scale)
    if settings.backbone:
        path = Path(settings.backbone) / "model.keras"
        latent.start_from(encoder, load_model.load(path))
    cells = _cells(settings, shape, encoder.output_shape[1:-1])
    head = latent.make_head(
        settings.head, len(data.classes), cells, settings.latent, settings.head_width
    )
    model = _patchgd(settings, encoder, head, shape)
    machine.of_all_replicas(settings, model)
    return model, model


def _scale(settings):
    """How pixels are scaled, for networks that do not do it themselves."""
    known = settings.encoder in encoders.NETWORKS
    return {"mean": settings.mean, "std": settings.std} if known else {}


def _cells(settings, shape, inside):
    """Rows and columns of Z, or None where images differ in size; `inside` are those of the map of a patch."""
    if None in shape:
        return None
    stride = settings.stride or settings.patch
    try:
        grid = tfbig.patchgd.PatchGrid(shape[:-1], (settings.patch,) * 2, (stride,) * 2)
        return tuple(n * m for n, m in zip(grid.cells, inside or (1, 1), strict=True))
    except ValueError as error:
        raise SourceError(f"--patch {settings.patch}: {error}") from error


def _series(settings, shape, classes):
    """The networks of the paper for time series."""
    if settings.mode == "offload":
        raise SourceError("--encoder series: series fit in memory; use --mode device or patchgd.")
    length, channels = shape
    if settings.mode != "patchgd":
        plain = series.baseline(length, channels, classes)
        return plain, plain
    encoder = series.encoder(settings.patch, channels)
    head = series.head(classes, length // settings.patch, encoder.output_shape[-1])
    model = _patchgd(settings, encoder, head, shape)
    return model, model


def _patchgd(settings, encoder, head, shape):
    every = settings.inner_accumulate == "all"
    return tfbig.PatchGD(
        encoder,
        head,
        settings.patch,
        settings.stride,
        settings.sampling,
        settings.inner_steps,
        None if every else settings.inner_accumulate,
        sampler=settings.sampler,
        encoder_scale=settings.encoder_scale,
        filling_norm=settings.filling_norm,
        patches_at_once=settings.patches_at_once,
        image_shape=shape,
        source_dtype="float32" if settings.images == "har" else "uint8",
        seed=settings.seed,
    )


def compile_both(model, twin, settings, data):
    """One optimizer for both: what is saved is the plain model, and it can be trained on."""
    optimizer = classifier_training.make_optimizer(settings, images.steps(data.train, settings))
    soft = settings.augment == "a3"
    loss = (
        keras.losses.CategoricalCrossentropy if soft else keras.losses.SparseCategoricalCrossentropy
    )
    for each in dict.fromkeys((twin, model)):
        metrics = ["accuracy", tfbig.metrics.QuadraticWeightedKappa(len(data.classes))]
        each.compile(
            optimizer,
            loss(from_logits=True),
            loss_weights=[float(settings.accumulate if settings.sum else 1)],
            metrics=metrics[: 1 if soft else 2],
        )


def print_plan(model, settings, data):
    """The plan of a step on the largest image, and what it says of memory, where the model streams."""
    if settings.mode != "offload":
        return None, {}
    plan, validation = (
        model.plan(
            (settings.batch_size, *max((i.shape for i in found.images), key=np.prod)), learns
        )
        for found, learns in ((data.train, True), (data.val, False))
    )
    print(f"\n{plan}\n", flush=True)
    return plan, classifier_training.planned_bytes(plan, validation)


def trained(model, twin, data, folder, settings, plan):
    """Fits, saves the model and its learning curve; gives what was measured."""
    if plan:
        run_folder.write_text(folder / "plan.txt", f"{plan}\n")
    if settings.warm_start:
        warm_start.learn(trunk_of(twin, settings), settings, folder, _scale(settings))
    history = fit(model, twin, data, folder, settings)
    _, peak = run_folder.memory_bytes()
    run_folder.save_model(folder / "model.keras", twin)
    labels = {"loss": "loss", "accuracy": "accuracy"}
    figures.learning_curve(folder / "learning_curve.png", history, labels, "validation images")
    found = {key: history[-1][key] for key in ("loss", "val_loss", "seconds_per_step")}
    return {"epochs": len(history), **found, "peak_bytes": peak}


def trunk_of(twin, settings):
    """The part of a model that is the encoder's network."""
    return (twin.encoder if settings.mode == "patchgd" else twin).get_layer(settings.encoder)


def fit(model, twin, data, folder, settings):
    """Trains from where the checkpoints are; gives the history of all epochs."""
    weights = classifier_training.class_weights(data) if settings.class_weights else None
    seen, unseen = (
        Epochs(
            images.steps(found, settings),
            partial(dataset, data, split, settings, of_split),
            classifier_training.names_of(found.images, found.labels),
        )
        for found, split, of_split in ((data.train, "train", weights), (data.val, "val", None))
    )
    monitor = f"val_{settings.monitor}"
    return classifier_training.fit_and_keep(model, twin, settings, folder, seen, unseen, monitor)


def dataset(data, split, settings, weights=None, shard=ALL_BATCHES):
    """Images of a split; labels become shares of classes where augmentation mixes them."""
    learns, count = split == "train", len(data.classes)
    dense = machine.is_plain(settings) or settings.augment == "a3"
    found = images.dataset(getattr(data, split), settings, learns, shard, dense, count)
    if settings.augment == "a3" and not learns:
        return found.map(lambda x, y: (x, tf.one_hot(y, count)))
    if weights is not None:
        return found.map(lambda x, y: (x, y, tf.gather(weights, y)))
    return found


def write_results(model, twin, data, folder, settings, measured):
    """Predictions, pictures, and last the metrics, which say that the run has ended."""
    test = data.test
    logits = model.predict(dataset(data, "test", settings).map(lambda x, *_: x), verbose=0)
    found = evaluation.scores(test.labels, evaluation.softmax(logits), len(data.classes))
    known = [{"image": image.name} for image in test.images]
    table = evaluation.rows(known, test.labels, found["probabilities"], data.classes)
    run_folder.write_csv(folder / run_folder.PREDICTIONS, table)
    title = f"{len(test.labels)} test images"
    figures.confusion(folder / "confusion.png", found["confusion"], data.classes, title)
    if settings.mode == "patchgd" and settings.encoder != "series":
        draw_latent(model, table, test, folder)
    numbers = {key: found[key] for key in ("accuracy", "qwk", "auc")}
    results = {"test_" + key: value for key, value in numbers.items()}
    results["confusion"] = found["confusion"].tolist()
    results["left_out"] = [list(reason) for reason in data.failed]
    command_line.write_metrics(folder, settings, measured | results)
    command_line.tell_results({f"test_{key}": value for key, value in numbers.items()}, folder)


def draw_latent(model, table, test, folder):
    """The latent grid of the first test images, and where a head with attention looks."""
    for number, (row, image) in enumerate(zip(table[:MAPS], test.images, strict=False)):
        with image.lent() as handle:
            z = model.latent(tf.constant([handle]))
        title = f"{image.name}: {row['label']}, predicted {row['predicted']}"
        figures.latent_grid(folder / f"latent_{number}.png", image, z[0].numpy(), title)
        if hasattr(model.head, "attention"):
            bag, attention = attention_by_code(model, image, z)
            evaluation.draw_attention(folder, f"attention_{number}", bag, attention, title)


def attention_by_code(model, image, z):
    """Where each code of Z looks, as patches, and how much it counts; by patch where maps do not tile the image."""
    patch, inside = model.patch, model.encoder.output_shape[1:-1]
    sizes = zip(image.shape[:-1], patch, inside, strict=False)
    if inside and model.stride == patch and not any(n % p or p % m for n, p, m in sizes):
        cell = tuple(p // m for p, m in zip(patch, inside, strict=True))
        return sources.Patches(image, cell), np.asarray(model.head.attention(z))[0]
    by_patch = np.asarray(model.attention_of(z))[0]
    return sources.Patches(image, patch, model.stride), by_patch
