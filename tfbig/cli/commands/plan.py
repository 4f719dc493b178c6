"""Print memory, disk and time of a model for images of a given size, before anything runs."""

from argparse import ArgumentTypeError
from pathlib import Path

import keras

import tfbig
from tfbig import SourceError, mil, sources
from tfbig.cli import load_model, machine, paths
from tfbig.cli import settings as command_line
from tfbig.cli.predictors.results import load_run
from tfbig.system.budget import available_bytes
from tfbig.units import format_bytes

CLASSES = 2


def add_flags(add):
    """Add the flags of this command."""
    add(
        "model",
        metavar="MODEL",
        help="run folder, .keras file, or name of a network of keras.applications, e.g. ResNet50",
    )
    add(
        "size",
        metavar="SIZE",
        help="rows x columns, e.g. 32768x32768; a slide of that size; or tiles of a bag, e.g. 2000",
    )
    add(
        "--batch-size",
        type=command_line.count,
        default=1,
        help="images or bags of a batch (default: 1)",
    )
    add("--inference", action="store_true", help="plan a prediction instead of a training step")
    load_model.add_flag(add)
    machine.add_memory(add)
    add(
        "--store",
        choices=["bfloat16", "float16"],
        help="dtype of stored images (default: the dtype of the model)",
    )


def run(settings):
    """Print the plan; if it does not fit, the error says what would help."""
    plain = model_of(settings.model, settings.custom)
    big = streamed(plain, machine.budget(settings), settings.store)
    if not settings.inference:
        big.compile("adam", _loss(plain))
    plan = big.plan((settings.batch_size, *extents(settings.size, plain)), not settings.inference)
    what = "prediction" if settings.inference else "training step"
    print(f"{plan}\n")
    print(
        f"It fits: a {what} takes {format_bytes(plan.total_bytes)} including the model, of "
        f"{format_bytes(available_bytes())} available, {format_bytes(plan.disk_bytes)} of disk, and about "
        f"{plan.seconds:.3g} s at the measured rates of this machine."
    )
    return 0


def model_of(name, custom=()):
    """Return a Keras model of a run, of a file, or of keras.applications with pooling and a classifier.

    Args:
        name: Path of a run folder or `.keras` file, or name of a network.
        custom: See `load_model.load`.

    Raises:
        SourceError: There is no such model, or it cannot be streamed.
    """
    if Path(name).exists():
        plain, _ = load_run(name, custom)
        if isinstance(plain, tfbig.PatchGD):
            raise SourceError(
                f"{name}: is a PatchGD model, which holds a few patches at a time and needs no plan."
            )
        return plain
    network = getattr(keras.applications, name, None)
    if not callable(network):
        names = [n for n in dir(keras.applications) if n[0].isupper()]
        raise SourceError(
            f"{name}: is not a run folder, a .keras file or a network of keras.applications: {', '.join(names)}."
        )
    trunk = network(include_top=False, weights=None, input_shape=(None, None, 3), pooling="avg")
    return keras.Model(trunk.inputs, keras.layers.Dense(CLASSES)(trunk.outputs[0]), name=name)


def streamed(plain, budget, store):
    """Return the model streamed by strips, or by slices of bags."""
    if len(plain.inputs[0].shape) == 5:
        encoder, aggregator = plain.get_layer("instances").model, plain.layers[-1]
        return mil.MIL(encoder, aggregator, budget=budget, store=store)
    return tfbig.stream(plain, budget, store=store, unsupported="device")


def extents(size, plain):
    """Return the axes of one input after the first: `(rows, columns, C)`, or `(n, H, W, C)` of a bag.

    Args:
        size: Rows x columns, path of a slide, or tiles of a bag.
        plain: The Keras model.

    Raises:
        SourceError: `size` is neither a size nor a slide.
    """
    shape = plain.inputs[0].shape
    try:
        if len(shape) == 5:
            return command_line.count(size), *shape[2:]
        if Path(size).suffix.lower() in sources.SLIDE_SUFFIXES:
            paths.check_path(size, size, "file or folder")
        if Path(size).exists():
            slide = sources.open_slide(size)
            slide.close()
            return *slide.shape[:2], shape[-1]
        rows, columns = (command_line.count(side) for side in size.lower().split("x"))
    except (ValueError, ArgumentTypeError) as error:
        expected = "tiles of a bag, e.g. 2000" if len(shape) == 5 else "rows x columns, or a slide"
        raise SourceError(f"{size}: is not a size; expected {expected}.") from error
    return rows, columns, shape[-1]


def _loss(plain):
    """Return any loss that fits the outputs; its cost is the same for all."""
    return dict.fromkeys(plain.output_names, "mse") if len(plain.outputs) > 1 else "mse"
