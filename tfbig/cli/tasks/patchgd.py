"""Train PatchGD: large images by a latent grid of their patches, approximate, in the memory of a few patches."""

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
    "patchgd": "latent grid of patches; a share of them is trained at a time",
    "device": "plain Keras on whole images, same trunk, head and data",
    "offload": "the network of mode device, streamed: exact, within the memory limits",
    "unified": machine.UNIFIED,
}
EXAMPLE = (
    "--task patchgd --images digits --data mnist --canvas 512 --factors 1 9 --patch 128 "
    "--encoder mobilenetv2 --out runs/mine"
)
MAPS = 4
"""Largest number of test images whose latent grid is drawn."""


def add_flags(add_data, add_training):
    """Add the flags of this task, in the groups of data and of training."""
    images.add_flags(add_data)
    _add_model(add_data)
    classifier_training.add_flags(add_training, 16, 8, "images of a step, all of the same size")
    _add_patchgd(add_training)
    add_training(
        "--test-only",
        metavar="RUN",
        help="train nothing; evaluate the model of this run folder on the test images",
    )


def _add_model(add):
    number = command_line.count
    add(
        "--encoder",
        choices=[*encoders.TRUNKS, *encoders.NETWORKS, "series"],
        default="strided",
        help="network of a patch; series: the network of the PatchGD paper for HAR (default: %(default)s)",
    )
    add(
        "--mean",
        type=float,
        nargs="+",
        default=0.0,
        help="mean of each channel divided by 255, for a ResNet or MobileNet (default: %(default)s)",
    )
    add(
        "--std",
        type=float,
        nargs="+",
        default=1.0,
        help="standard deviation of each channel divided by 255, for a ResNet or MobileNet (default: %(default)s)",
    )
    add(
        "--latent",
        type=number,
        default=64,
        help="channels of a code; published: 256 (default: %(default)s)",
    )
    add(
        "--code",
        choices=["vector", "map"],
        help="code of a patch. vector: pooled, as published; map: output of the network without pooling (default: "
        "map, for slides vector, because a head over all maps takes too long)",
    )
    add(
        "--head",
        choices=[*latent.HEADS, "series"],
        default="transformer",
        help="network over the latent grid (default: %(default)s)",
    )
    add(
        "--head-width",
        type=number,
        default=64,
        help="channels of the head; published: 256 (default: %(default)s)",
    )
    add(
        "--backbone",
        metavar="RUN",
        help="run folder of --mode device; its trunk initialises the encoder (default: random)",
    )
    warm_start.add_flag(add)


def _add_patchgd(add):
    number = command_line.count
    add(
        "--patch",
        type=number,
        default=128,
        help="rows and columns of a patch, in pixels (default: 128)",
    )
    add("--stride", type=number, help="pixels from one patch to the next (default: --patch)")
    add(
        "--sampling",
        type=_sampling,
        default=0.25,
        help="patches of an inner step: a share with a decimal point (0.25, 1.0), or a number (16) (default: 0.25)",
    )
    add(
        "--inner-steps",
        type=number,
        help="inner steps of a step (default: until every patch was used)",
    )
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
        help="how the patches of an inner step are drawn (default: %(default)s)",
    )
    add(
        "--encoder-scale",
        choices=patch_sampling.SCALES,
        default="published",
        help="scale of the encoder's gradient (default: %(default)s)",
    )
    add(
        "--filling-norm",
        choices=tfbig.patchgd.FILLINGS,
        default="published",
        help="BatchNormalization while Z is filled (default: %(default)s)",
    )
    add(
        "--patches-at-once",
        type=number,
        help="patches that the encoder processes at once, over all images of a step (default: all)",
    )


def _sampling(text):
    return float(text) if "." in text else command_line.count(text)


def _steps(text):
    return text if text == "all" else command_line.count(text)


def train(settings):
    """Run a training from its settings, or an evaluation, and return the exit code."""
    settings.warm_start = warm_start.epochs(settings)
    data = images.load(settings)
    print(f"mode {settings.mode}, encoder {settings.encoder}, precision {settings.precision}")
    images.print_counts(data)
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
        twin.optimizer.build(twin.trainable_variables)  # the file has its state
        load_model.load_weights(twin, Path(settings.test_only) / "model.keras")
    else:
        measured |= fit_and_save(model, twin, data, folder, settings, plan) | planned
        if not machine.is_chief():
            return splits.exit_code([], folder)
        both = model, twin
        model, twin = machine.without_strategy(both, lambda: _new_models(settings, data), folder)
    write_results(model, twin, data, folder, settings, measured)
    return splits.exit_code([], folder)


def _new_models(settings, data):
    """Return new models, compiled: the file of weights also holds the state of the optimizer."""
    model, twin = make_model(settings, data)
    compile_both(model, twin, settings, data)
    twin.optimizer.build(twin.trainable_variables)
    return model, twin


def make_model(settings, data):
    """Return the model to train and the model to save: the same, or the plain one of a streamed model."""
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
        machine.synchronize_norm(settings, plain)
        if machine.is_plain(settings):
            return plain, plain
        budget = machine.budget(settings)
        big = tfbig.stream(plain, budget, devices=settings.devices, unsupported="device")
        return big, plain  # heads that cannot be streamed use whole tensors
    if settings.accumulate > 1 and settings.inner_accumulate != "all":
        raise SourceError(
            f"--accumulate {settings.accumulate}: accumulates gradients over steps, but with --inner-accumulate "
            f"{settings.inner_accumulate} the optimizer steps within each. Use --inner-accumulate all."
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
    machine.synchronize_norm(settings, model)
    return model, model


def _scale(settings):
    """Return the scale of pixels, for networks that do not scale them."""
    scaled_outside = settings.encoder in encoders.NETWORKS
    return {"mean": settings.mean, "std": settings.std} if scaled_outside else {}


def _cells(settings, shape, inside):
    """Return rows and columns of Z, or None if images differ in size.

    Args:
        settings: Settings of the run.
        shape: Shape of the images.
        inside: Rows and columns of the map of a patch, or an empty tuple.
    """
    if None in shape:
        return None
    stride = settings.stride or settings.patch
    try:
        grid = tfbig.patchgd.PatchGrid(shape[:-1], (settings.patch,) * 2, (stride,) * 2)
        return tuple(n * m for n, m in zip(grid.cells, inside or (1, 1), strict=True))
    except ValueError as error:
        raise SourceError(f"--patch {settings.patch}: {error}") from error


def _series(settings, shape, classes):
    """Return the networks of the paper for time series."""
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
    """Compile both models with one optimizer, so that training of the saved plain model can continue."""
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
    """Print the plan of a step on the largest image, and return it with planned memory, if the model streams."""
    if settings.mode != "offload":
        return None, {}
    plan, validation = (
        model.plan((settings.batch_size, *max((i.shape for i in part.images), key=np.prod)), learns)
        for part, learns in ((data.train, True), (data.val, False))
    )
    print(f"\n{plan}\n", flush=True)
    return plan, machine.planned_bytes(plan, validation)


def fit_and_save(model, twin, data, folder, settings, plan):
    """Train, save the model and its learning curve, and return the measurements."""
    if plan:
        run_folder.write_text(folder / "plan.txt", f"{plan}\n")
    if settings.warm_start:
        warm_start.learn(trunk_of(twin, settings), settings, folder, _scale(settings))
    history = fit(model, twin, data, folder, settings)
    _, peak = run_folder.memory_bytes()
    run_folder.save_model(folder / "model.keras", twin)
    labels = {"loss": "loss", "accuracy": "accuracy"}
    figures.learning_curve(folder / "learning_curve.png", history, labels, "validation images")
    measured = {key: history[-1][key] for key in ("loss", "val_loss", "seconds_per_step")}
    return {"epochs": len(history), **measured, "peak_bytes": peak}


def trunk_of(twin, settings):
    """Return the encoder's network in a model."""
    return (twin.encoder if settings.mode == "patchgd" else twin).get_layer(settings.encoder)


def fit(model, twin, data, folder, settings):
    """Train from the last checkpoint, and return the history of all epochs."""
    weights = classifier_training.class_weights(data) if settings.class_weights else None
    training, validation = (
        Epochs(
            images.steps(part, settings),
            partial(dataset, data, split, settings, of_split),
            classifier_training.item_names(part.images, part.labels),
        )
        for part, split, of_split in ((data.train, "train", weights), (data.val, "val", None))
    )
    monitor = f"val_{settings.monitor}"
    return classifier_training.fit_and_keep(
        model, twin, settings, folder, training, validation, monitor
    )


def dataset(data, split, settings, weights=None, shard=ALL_BATCHES):
    """Return the images of a split; labels are shares of classes if augmentation mixes images.

    Args:
        data: Data of the run.
        split: Name of the split.
        settings: Settings of the run.
        weights: Weights of the classes, or None.
        shard: Batches of this worker, and the epoch to start with.
    """
    learns, count = split == "train", len(data.classes)
    dense = machine.is_plain(settings) or settings.augment == "a3"
    batches = images.dataset(getattr(data, split), settings, learns, shard, dense, count)
    if settings.augment == "a3" and not learns:
        return batches.map(lambda x, y: (x, tf.one_hot(y, count)))
    if weights is not None:
        return batches.map(lambda x, y: (x, y, tf.gather(weights, y)))
    return batches


def write_results(model, twin, data, folder, settings, measured):
    """Write predictions, pictures, and last the metrics, whose presence means that the run has ended."""
    test = data.test
    logits = model.predict(dataset(data, "test", settings).map(lambda x, *_: x), verbose=0)
    scores = evaluation.scores(test.labels, evaluation.softmax(logits), len(data.classes))
    items = [{"image": image.name} for image in test.images]
    table = evaluation.rows(items, test.labels, scores["probabilities"], data.classes)
    run_folder.write_csv(folder / run_folder.PREDICTIONS, table)
    title = f"{len(test.labels)} test images"
    figures.confusion(folder / "confusion.png", scores["confusion"], data.classes, title)
    if settings.mode == "patchgd" and settings.encoder != "series":
        draw_latent(model, table, test, folder)
    numbers = {key: scores[key] for key in ("accuracy", "qwk", "auc")}
    results = {"test_" + key: value for key, value in numbers.items()}
    results["confusion"] = scores["confusion"].tolist()
    results["left_out"] = [list(reason) for reason in data.failed]
    command_line.write_metrics(folder, settings, measured | results)
    command_line.print_results({f"test_{key}": value for key, value in numbers.items()}, folder)


def draw_latent(model, table, test, folder):
    """Draw the latent grid of the first test images, and the attention of a head that has one."""
    for number, (row, image) in enumerate(zip(table[:MAPS], test.images, strict=False)):
        with image.lent() as handle:
            z = model.latent(tf.constant([handle]))
        title = f"{image.name}: {row['label']}, predicted {row['predicted']}"
        figures.latent_grid(folder / f"latent_{number}.png", image, z[0].numpy(), title)
        if hasattr(model.head, "attention"):
            bag, attention = attention_by_code(model, image, z)
            evaluation.draw_attention(folder, f"attention_{number}", bag, attention, title)


def attention_by_code(model, image, z):
    """Return each code of Z as a patch, with its attention; by patch if maps do not tile the image."""
    patch, inside = model.patch, model.encoder.output_shape[1:-1]
    sizes = zip(image.shape[:-1], patch, inside, strict=False)
    if inside and model.stride == patch and not any(n % p or p % m for n, p, m in sizes):
        cell = tuple(p // m for p, m in zip(patch, inside, strict=True))
        return sources.Patches(image, cell), np.asarray(model.head.attention(z))[0]
    by_patch = np.asarray(model.attention_of(z))[0]
    return sources.Patches(image, patch, model.stride), by_patch
