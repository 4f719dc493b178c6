"""Print memory, disk and time of a model for images of a given size, before anything runs."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import keras

import tfbig
from tfbig import SourceError, mil, sources
from tfbig.cli import machine, paths
from tfbig.cli.data import background
from tfbig.cli.data.background import Masking
from tfbig.cli.predictors.results import Config, load_run
from tfbig.cli.settings import flag_errors
from tfbig.cli.settings.commands import PlanSettings
from tfbig.cli.settings.value_types import count
from tfbig.system.budget import available_bytes
from tfbig.units import format_bytes

CLASSES = 2


def run(settings: PlanSettings) -> int:
    """Print the plan; if it does not fit, the error says what would help."""
    plain, config = model_of(settings.model, settings.custom)
    settings = background.resolved(settings, config if Path(settings.size).exists() else None)
    big = streamed(plain, machine.budget(settings), settings.store)
    if not settings.inference:
        big.compile("adam", _loss(plain))
    plan = big.plan(image_of(settings, plain), not settings.inference)
    what = "prediction" if settings.inference else "training step"
    print(f"{plan}\n")
    print(
        f"It fits: a {what} takes {format_bytes(plan.total_bytes)} including the model, of "
        f"{format_bytes(available_bytes())} available, {format_bytes(plan.projected.disk)} of disk, and about "
        f"{plan.seconds:.3g} s at the measured rates of this machine."
    )
    return 0


def model_of(name: str, custom: Sequence[str] = ()) -> tuple[Any, Config]:
    """Load a Keras model of a run or a file, with its run, or build one of keras.applications with a classifier.

    Raises:
        SourceError: There is no such model, or it cannot be streamed.
    """
    if Path(name).exists():
        plain, config = load_run(name, custom)
        if isinstance(plain, tfbig.PatchGD):
            raise SourceError(
                f"{name}: is a PatchGD model, which holds a few patches at a time and needs no plan."
            )
        return plain, config
    network = getattr(keras.applications, name, None)
    if not callable(network):
        raise SourceError(
            f"{name}: is not a run folder, a .keras file or a network of keras.applications. {_meant(name)}"
        )
    trunk = network(include_top=False, weights=None, input_shape=(None, None, 3), pooling="avg")
    output = keras.layers.Dense(CLASSES)(trunk.outputs[0])
    return keras.Model(trunk.inputs, output, name=name), {}


def _meant(name: str) -> str:
    """Name the networks that are most like a wrong name, or some networks."""
    meant = flag_errors.closest(name, [n for n in dir(keras.applications) if n[0].isupper()], 2)
    if meant:
        return f"Did you mean {' or '.join(meant)}?"
    return "Such networks are ResNet50 and MobileNetV3Large; see https://keras.io/api/applications for all."


def streamed(plain: Any, budget: tfbig.Budget, store: str | None) -> Any:
    """Stream the model by strips, or by slices of bags."""
    if _takes_bags(plain):
        encoder, aggregator = plain.get_layer("instances").model, plain.layers[-1]
        return mil.MIL(encoder, aggregator, budget=budget, store=store)
    return tfbig.stream(plain, budget, store=store, unsupported="device")


def image_of(settings: PlanSettings, plain: Any) -> tuple[int, ...] | sources.Source:
    """The shape of a batch, or a slide whose background is skipped.

    Raises:
        FlagError: Background is to be skipped, and there is no slide, or a batch of several.
    """
    batch = settings.batch_size, *extents(settings.size, plain)
    masking = Masking.of(settings)
    if masking is None:
        return batch
    if len(plain.inputs[0].shape) > 4 or not Path(settings.size).exists():
        background.refuse(
            settings,
            f"{settings.size} is no slide, and so has no background. Name a slide, or remove it.",
        )
    if settings.batch_size > 1:
        raise paths.FlagError(
            f"--batch-size {settings.batch_size}: a slide whose background is skipped is planned alone. Remove it."
        )
    slide = sources.open_slide(settings.size)  # open as long as the image
    image = masking.apply(slide, slide.level())
    return sources.RGB(image) if batch[-1] == 3 else sources.Grayscale(image)


def extents(size: str, plain: Any) -> tuple[int, ...]:
    """The axes of one input after the first, such as `(rows, columns, C)`, or `(n, H, W, C)` of a bag.

    `size` is rows x columns; planes x rows x columns of a volume; one number if all are equal; the path of a slide
    or of a volume; or the number of tiles of a bag.

    Raises:
        SourceError: `size` is none of these.
    """
    shape = plain.inputs[0].shape
    axes = 1 if _takes_bags(plain) else len(shape) - 2
    try:
        sides = _sides_of_file(size, axes) or [count(side) for side in size.lower().split("x")]
    except ValueError:
        sides = []
    sides = sides * axes if len(sides) == 1 else sides
    if len(sides) != axes:
        expected = "tiles of a bag, e.g. 2000" if _takes_bags(plain) else _SIZES[axes]
        raise SourceError(f"{size}: is not a size; expected {expected}.")
    return *sides, *shape[1 + axes :]


_SIZES = {
    1: "a number of samples",
    2: "rows x columns, or a slide",
    3: "planes x rows x columns, or a volume",
}
"""What is expected as a size, by the number of axes."""


def _takes_bags(plain: Any) -> bool:
    """Tell whether a model is one of multiple instance learning, whose first layer encodes all tiles of a bag."""
    is_instances = any(layer.name == "instances" for layer in plain.layers)
    return is_instances and len(plain.inputs[0].shape) == 5


def _sides_of_file(path: str, axes: int) -> list[int]:
    """Read rows and columns of a slide, or planes, rows and columns of a volume; empty if no file is meant."""
    name = path.lower()
    if name.endswith((*sources.SLIDE_SUFFIXES, *sources.VOLUME_SUFFIXES)):
        paths.check_path(path, path, "file or folder")
    if not Path(path).exists():
        return []
    if axes == 3:
        return list(sources.open_volume(path).shape[:3])
    with closing(sources.open_slide(path)) as slide:
        return list(slide.shape[:2])


def _loss(plain: Any) -> str | dict[str, str]:
    """Any loss that fits the outputs; its cost is the same for all."""
    return dict.fromkeys(plain.output_names, "mse") if len(plain.outputs) > 1 else "mse"
