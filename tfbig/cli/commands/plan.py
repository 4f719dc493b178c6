"""Says before anything runs whether a model fits for images of a size, where everything lies, and how long it takes."""

from argparse import ArgumentTypeError
from pathlib import Path

import keras

import tfbig
from tfbig import SourceError, mil, sources
from tfbig.cli import load_model, machine
from tfbig.cli import settings as command_line
from tfbig.cli.predictors.results import run_of
from tfbig.system.budget import available_bytes
from tfbig.units import format_bytes

CLASSES = 2


def add_flags(add):
    """Flags of this command."""
    add(
        "model",
        metavar="MODEL",
        help="run folder, .keras file, or a network of keras.applications, e.g. ResNet50",
    )
    add(
        "size",
        metavar="SIZE",
        help="rows x columns, e.g. 32768x32768; a slide, whose size is taken; or tiles of a bag, e.g. 2000",
    )
    add("--batch-size", type=command_line.count, default=1, help="(default: 1)")
    add("--inference", action="store_true", help="plan predictions instead of training steps")
    load_model.add_flag(add)
    machine.add_memory(add)
    add(
        "--store",
        choices=["bfloat16", "float16"],
        help="keep images between sweeps at this precision",
    )


def run(settings):
    """Prints the plan; an error says what would make it fit."""
    plain = model_of(settings.model, settings.custom)
    big = streamed(plain, machine.budget(settings), settings.store)
    if not settings.inference:
        big.compile("adam", _loss(plain))
    plan = big.plan((settings.batch_size, *extents(settings.size, plain)), not settings.inference)
    what = "prediction" if settings.inference else "training step"
    print(f"{plan}\n")
    print(
        f"It fits: a {what} takes {format_bytes(plan.total_bytes)} with the model, of "
        f"{format_bytes(available_bytes())} that are available, {format_bytes(plan.disk_bytes)} of disk, and about "
        f"{plan.seconds:.3g} s by the rates of this machine."
    )
    return 0


def model_of(name, custom=()):
    """A Keras model of a run, of a file, or of keras.applications with a pooling and a classifier.

    Raises:
        SourceError: there is none, or it cannot be streamed.
    """
    if Path(name).exists():
        plain, _ = run_of(name, custom)
        if isinstance(plain, tfbig.PatchGD):
            raise SourceError(f"{name}: PatchGD holds some patches at a time and needs no plan.")
        return plain
    network = getattr(keras.applications, name, None)
    if not callable(network):
        known = [n for n in dir(keras.applications) if n[0].isupper()]
        raise SourceError(
            f"{name}: is no run folder, no .keras file and no network of keras.applications: {', '.join(known)}."
        )
    trunk = network(include_top=False, weights=None, input_shape=(None, None, 3), pooling="avg")
    return keras.Model(trunk.inputs, keras.layers.Dense(CLASSES)(trunk.outputs[0]), name=name)


def streamed(plain, budget, store):
    """Strip by strip, or bags slice by slice."""
    if len(plain.inputs[0].shape) == 5:
        encoder, aggregator = plain.get_layer("instances").model, plain.layers[-1]
        return mil.MIL(encoder, aggregator, budget=budget, store=store)
    return tfbig.stream(plain, budget, store=store, unsupported="device")


def extents(size, plain):
    """Axes of one input after the first, from `--size`: `(rows, columns, C)`, or `(n, H, W, C)` of a bag.

    Raises:
        SourceError: it is no size, and no slide.
    """
    known = plain.inputs[0].shape
    try:
        if len(known) == 5:
            return command_line.count(size), *known[2:]
        if Path(size).exists():
            slide = sources.open_slide(size)
            slide.close()
            return *slide.shape[:2], known[-1]
        rows, columns = (command_line.count(side) for side in size.lower().split("x"))
    except (ValueError, ArgumentTypeError) as error:
        expected = "tiles of a bag, e.g. 2000" if len(known) == 5 else "rows x columns, or a slide"
        raise SourceError(f"{size}: is no size; expected {expected}.") from error
    return rows, columns, known[-1]


def _loss(plain):
    """One that fits the outputs: its own cost does not depend on which."""
    return dict.fromkeys(plain.output_names, "mse") if len(plain.outputs) > 1 else "mse"
