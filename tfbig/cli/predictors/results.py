"""Shared by all predictors: loading, classes, the table, and attention as maps and detections."""

from pathlib import Path

import keras
import numpy as np
import yaml

from tfbig import SourceError, sources
from tfbig.cli import load_model, slide_batch
from tfbig.cli.data import tile_coords
from tfbig.cli.tasks import evaluation
from tfbig.results import figures, geojson, heatmap, run_folder, slide_viewer
from tfbig.sources.slides.slide import title_of

INPUT_CHANNELS = {"rgb": 3, "gray": 1, "inverted-gray": 1}


def load_run(path, custom=()):
    """Return `(model, settings)` of a run folder, or `(model, {})` of a `.keras` file.

    Args:
        path: Path of the run folder or file.
        custom: See `load_model.load`.

    Raises:
        SourceError: The path does not exist, or the model cannot be loaded.
    """
    folder = Path(path)
    if not folder.is_dir():
        return load_model.load(folder, custom), {}
    try:
        config = yaml.safe_load((folder / run_folder.CONFIG).read_text(encoding="utf-8"))
        config["task"]
    except (OSError, TypeError, KeyError, ValueError, yaml.YAMLError) as error:
        raise SourceError(
            f"{folder}: is not a run folder of train ({error}); expected one with {run_folder.CONFIG} and model.keras."
        ) from error
    return load_model.load(folder / "model.keras", custom), config


def set_input(settings, channels, default=None):
    """Set `settings.input` if it is missing.

    Args:
        settings: Settings of the command.
        channels: Input channels of the network.
        default: Input of the run, if known.

    Raises:
        SourceError: The network has another number of channels.
    """
    settings.input = settings.input or default or ("rgb" if channels == 3 else "gray")
    if INPUT_CHANNELS[settings.input] != channels:
        raise SourceError(
            f"{settings.model}: expects {channels} channels, but --input {settings.input} gives "
            f"{INPUT_CHANNELS[settings.input]}. Use another --input."
        )


def set_classes(settings, count, names=None):
    """Set the names of the classes if they are missing: those of the run, or numbers.

    Args:
        settings: Settings of the command.
        count: Number of classes.
        names: Names of the run, if known.

    Raises:
        SourceError: The number of names is not `count`.
    """
    settings.classes = settings.classes or names or [*map(str, range(count))]
    if len(settings.classes) != count:
        raise SourceError(
            f"--classes: {len(settings.classes)} names; expected {count}, one for each class of the network."
        )


def set_resolution(settings, config, **default):
    """Set the resolution of slides if it is missing: that of the run, or the default.

    Args:
        settings: Settings of the command.
        config: Settings of the run.
        **default: The setting to use, such as `mpp=0.5`.
    """
    slide_batch.set_resolution(settings, **(resolution_of_run(config) or default))


def resolution_of_run(config):
    """Return the resolution of a run, such as `{"mpp": 0.5}`; empty if its settings have none."""
    values = {key: config.get(key) for key in tile_coords.RESOLUTIONS}
    return dict([pair for pair in values.items() if pair[1] is not None][:1])


def network_input(source, settings):
    """Return the image as the network expects it: RGB, gray or inverted gray."""
    channels = (3,) if settings.input == "rgb" else (1, 3)
    if source.shape[2] not in channels:
        raise SourceError(
            f"{source.name}: has {source.shape[2]} channels; the network expects {settings.input}. Convert the slide."
        )
    if settings.input == "rgb":
        return source
    return sources.Grayscale(source, invert=settings.input == "inverted-gray")


def class_probabilities(outputs, last):
    """Return probabilities `[K]`; for one output, those of both classes.

    Args:
        outputs: Outputs of the network, `[K]`.
        last: Its last layer. With a softmax or sigmoid activation, or as a Softmax layer, it returns probabilities,
            else logits.
    """
    values = np.asarray(outputs, np.float64)
    activation = getattr(getattr(last, "activation", None), "__name__", "")
    normalized = activation in ("softmax", "sigmoid") or isinstance(last, keras.layers.Softmax)
    if len(values) == 1:
        share = values if normalized else 1 / (1 + np.exp(-values))
        return np.concatenate([1 - share, share])
    return values if normalized else evaluation.softmax(values)


def slide_columns(path, source):
    """Return the first columns of the table."""
    mpp = source.mpp or (None, None)
    row = {"slide": path.name, "rows": source.shape[0], "columns": source.shape[1]}
    return row | {"mpp_rows": mpp[0], "mpp_columns": mpp[1]}


def class_columns(classes, probabilities):
    """Return the columns of a predicted class."""
    columns = {f"probability_{n}": float(p) for n, p in zip(classes, probabilities, strict=True)}
    return {"predicted": classes[int(np.argmax(probabilities))], **columns}


def write_row(folder, row):
    """Write a row of the table, in place of an older one of the same slide."""
    run_folder.replace_row(Path(folder) / run_folder.PREDICTIONS, "slide", row["slide"], row)


def has_row(folder, path):
    """Return whether the table has a row of the slide."""
    table = Path(folder) / run_folder.PREDICTIONS
    rows = run_folder.read_rows(table)
    return any(run_folder.column(table, row, "slide") == path.name for row in rows)


def write_attention(settings, path, slide, coords, attention, title, scores=None):
    """Write the attention of tiles as detections, a picture, an OME-TIFF, and in the view of the report.

    Args:
        settings: Settings of the command.
        path: Path of the slide.
        slide: The slide.
        coords: Coordinates of the tiles.
        attention: Attention of each tile, `[n]`.
        title: Title of the picture.
        scores: Probabilities of each tile, `[n, classes]`, if the network has them.
    """
    folder, name = Path(settings.out), title_of(path)
    numbers = {"attention": attention}
    classes, names = np.zeros(len(attention), int), ["region"]
    if scores is not None:
        classes, names = scores.argmax(1), settings.classes
        numbers |= {f"probability_{n}": scores[:, i] for i, n in enumerate(settings.classes)}
    features = geojson.tile_features(coords.coords, coords.size_at_level_0, classes, names, numbers)
    geojson.write_geojson(folder / f"{name}.geojson", features)
    painted, share = heatmap.paint(coords, attention, slide)
    overlay = slide_viewer.value_overlay("attention", painted, share)
    figures.slide_overlay(folder / f"{name}.png", slide, overlay, title)
    slide_batch.write_view(settings, path, slide, [overlay])
    source = heatmap.as_source(painted, coords, slide)
    step = heatmap.pixel_size(coords)
    georeference = slide.georeference and slide.georeference.scaled(step, step)
    sources.write_ome_tiff(folder / f"{name}_attention.ome.tif", source, georeference=georeference)
