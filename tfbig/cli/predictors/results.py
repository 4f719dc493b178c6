"""Shared by all predictors: loading, classes, the table, and attention as maps and detections."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias

import keras
import numpy as np
import numpy.typing as npt

from tfbig import SourceError, sources
from tfbig.cli import load_model, slide_batch
from tfbig.cli.data import background, tile_coords
from tfbig.cli.paths import FlagError
from tfbig.cli.settings import training
from tfbig.cli.settings.choices import INPUT_CHANNELS
from tfbig.cli.settings.series import members
from tfbig.cli.settings.slide_settings import PredictSettings
from tfbig.cli.tasks import class_scores, targets
from tfbig.cli.tasks.target import Target
from tfbig.errors import reason_of
from tfbig.results import figures, geojson, heatmap, run_folder, slide_viewer
from tfbig.sources import Coords, Source
from tfbig.sources.names import title_of
from tfbig.sources.slides.slide import Slide
from tfbig.system.output_folder import file_in
from tfbig.units import counted

Config: TypeAlias = Mapping[str, Any]
"""Settings of a run; empty for a `.keras` file."""

BY_PATCHES = "this model reads patches or tiles of slides and has no background to skip. Remove it."
"""Why the background of slides cannot be skipped."""


def load_run(path: str | Path, custom: Sequence[str] = ()) -> tuple[Any, Config]:
    """Load the model and the settings of a run folder; a `.keras` file has no settings.

    Modules in `custom` are imported first, as by `load_model.load`.

    Raises:
        SourceError: The path does not exist, or the model cannot be loaded.
    """
    folder = Path(path)
    if not folder.is_dir():
        return load_model.load(folder, custom), {}
    try:
        config = training.current_names(run_folder.read_yaml(folder / run_folder.CONFIG))
        config["task"]
        _check_names(config.get("class_names"))
    except (OSError, KeyError, ValueError) as error:
        raise SourceError(
            f"{folder}: is not a run folder of train ({reason_of(error)}); expected one with {run_folder.CONFIG} and "
            "model.keras."
        ) from error
    if several := members(config, str(folder / run_folder.CONFIG)):
        one = several[0].folder(folder)
        raise SourceError(
            f"{folder}: holds the runs of several seeds or folds. Name one of them, such as {one}."
        )
    return load_model.load(folder / "model.keras", custom), config


def _check_names(names: Any) -> None:
    """Check the names of classes in the settings of a run.

    Raises:
        ValueError: They are no list of texts.
    """
    if names is not None and not (
        isinstance(names, list) and all(isinstance(n, str) for n in names)
    ):
        raise ValueError(f"its class_names are {reason_of(names)}, not a list of names")


def input_of(settings: PredictSettings, channels: int, default: str | None = None) -> str:
    """The input that the network expects: that of the flag, of the run, or by its channels.

    Raises:
        SourceError: The network has another number of channels.
    """
    name = settings.input or default or ("rgb" if channels == 3 else "gray")
    if INPUT_CHANNELS[name] != channels:
        raise SourceError(
            f"{settings.model}: expects {counted(channels, 'channel')}, but --input {name} gives "
            f"{INPUT_CHANNELS[name]}. Use another --input."
        )
    return name


def classes_of(
    settings: PredictSettings, count: int, names: Sequence[str] | None = None
) -> tuple[str, ...]:
    """The names of the classes: those of the flag, of the run, or numbers.

    Raises:
        SourceError: The number of names is not `count`.
    """
    classes = settings.class_names or tuple(names or map(str, range(count)))
    if len(classes) != count:
        raise FlagError(
            f"--class-names: {len(classes)} names; expected {count}, one for each class of the network."
        )
    return classes


def target_of(settings: PredictSettings, num_outputs: int, config: Config) -> Target:
    """The predictions of a network of bags or images: of the target of its run, or classes.

    `config` is empty without a run.

    Raises:
        SourceError: There are names of classes, but the network has none, or another number.
    """
    if config.get("target") in ("survival", "regression"):
        if settings.class_names:
            raise FlagError(
                f"--class-names: {settings.model} predicts --target {config['target']} and has no classes. Leave it "
                "out."
            )
        return targets.of_config(config, ())
    return targets.of_config(config, classes_of(settings, num_outputs, config.get("class_names")))


def names_of(target: Target) -> tuple[str, ...] | None:
    """The names of the classes or labels of a target, or None."""
    names: tuple[str, ...] | None = getattr(target, "classes", getattr(target, "names", None))
    return names


def check_attention(name: str, plain: Any) -> None:
    """Check that the last layer of a network of bags gives attention; `name` is the path of the network.

    Raises:
        SourceError: It does not.
    """
    if not hasattr(plain.layers[-1], "attention"):
        raise SourceError(
            f"{name}: its last layer '{plain.layers[-1].name}' has no method `attention`, which tfbig "
            "predict needs."
        )


def with_resolution(settings: PredictSettings, config: Config, **default: float) -> PredictSettings:
    """Fill in a resolution: that of the flags, of the run, or a default such as `mpp=0.5`."""
    return slide_batch.with_resolution(settings, **(resolution_of_run(config) or default))


def resolution_of_run(config: Config) -> dict[str, Any]:
    """The resolution of a run, such as `{"mpp": 0.5}`; empty if its settings have none."""
    values = {key: config.get(key) for key in tile_coords.RESOLUTIONS}
    return dict([pair for pair in values.items() if pair[1] is not None][:1])


def network_input(source: Source, settings: PredictSettings) -> Source:
    """Convert the image to what the network expects: RGB, gray or inverted gray."""
    if source.shape[2] not in (1, 3):
        raise SourceError(
            f"{source.name}: has {counted(source.shape[2], 'channel')}; the network expects {settings.input}. "
            "Convert the slide."
        )
    if settings.input == "rgb":
        return sources.RGB(source)
    return sources.Grayscale(source, invert=settings.input == "inverted-gray")


def activation_of(layer: Any) -> str:
    """The name of the activation function of a layer, such as "sigmoid"; empty if it has none."""
    return getattr(getattr(layer, "activation", None), "__name__", "")


def class_probabilities(outputs: npt.ArrayLike, last: Any) -> npt.NDArray[np.float64]:
    """Turn outputs `[K]` into probabilities `[K]`; one output into those of both classes.

    With a softmax or sigmoid activation, or as a Softmax layer, the last layer returns probabilities, else logits.
    """
    values = np.asarray(outputs, np.float64)
    normalized = activation_of(last) in ("softmax", "sigmoid") or isinstance(
        last, keras.layers.Softmax
    )
    if len(values) == 1:
        share = values if normalized else 1 / (1 + np.exp(-values))
        return np.concatenate([1 - share, share])
    return values if normalized else class_scores.softmax(values)


def computed(model: Any, source: Source, image: Source) -> dict[str, float]:
    """The columns that say how much of a masked slide is foreground, and is computed.

    `image` is the slide as the network reads it.
    """
    return background.shares(source, model.plan(image, training=False))


def in_words(computed: Mapping[str, float]) -> str:
    """Put the columns of `computed` into a line to print; empty without them."""
    if not computed:
        return ""
    return f", {computed['computed']:.1%} computed for {computed['foreground']:.1%} foreground"


def slide_columns(path: Path, source: Source) -> dict[str, Any]:
    """The first columns of the table."""
    mpp: Sequence[float | None] = source.mpp or (None, None)
    row = {"slide": path.name, "rows": source.shape[0], "columns": source.shape[1]}
    return row | {"mpp_rows": mpp[0], "mpp_columns": mpp[1]}


def write_row(folder: Path, row: Mapping[str, Any]) -> None:
    """Write a row of the table, in place of an older one with the same name in the first column."""
    column = next(iter(row))
    run_folder.replace_row(Path(folder) / run_folder.PREDICTIONS, column, row[column], row)


def has_row(folder: Path, path: Path, column: str = "slide") -> bool:
    """Tell whether the table has a row of a slide, or of a bag if that is the first column."""
    table = Path(folder) / run_folder.PREDICTIONS
    rows = run_folder.read_rows(table)
    return any(run_folder.column(table, row, column) == path.name for row in rows)


def write_attention(
    settings: PredictSettings,
    path: Path,
    slide: Slide,
    coords: Coords,
    attention: npt.NDArray[Any],
    title: str,
    numbers: Mapping[str, npt.NDArray[Any]] = MappingProxyType({}),
    classes: tuple[npt.NDArray[Any], Sequence[str]] | None = None,
) -> None:
    """Write the attention of tiles `[n]` as detections, a picture, an OME-TIFF, and in the view of the report.

    `numbers` are further numbers of each tile, `[n]`, by name. `classes` are the class of each tile, `[n]`, and the
    names of the classes, if there are any.
    """
    folder, name = Path(settings.out), title_of(path)
    kinds, names = classes or (np.zeros(len(attention), int), ["region"])
    measured = {"attention": attention, **numbers}
    features = geojson.tile_features(
        coords.coords, coords.sides_at_level_0, kinds, [*names], measured
    )
    slide_batch.write_outlines(settings, path, slide, features)
    painted, share = heatmap.paint(coords, attention, slide)
    height = None if coords.row_step is None else heatmap.height_of(painted, coords, slide)
    overlay = slide_viewer.attention_overlay(painted, len(attention), share, height)
    figures.slide_overlay(file_in(folder, f"{name}.png"), slide, overlay, title)
    slide_batch.write_view(settings, path, slide, [overlay], title)
    source = heatmap.as_source(painted, coords, slide)
    sides = heatmap.pixel_sides(coords)
    georeference = slide.georeference and slide.georeference.scaled(*sides)
    sources.write_ome_tiff(
        file_in(folder, f"{name}_attention.ome.tif"),
        source,
        channel_names=["attention"],
        georeference=georeference,
    )
