"""What every kind of prediction shares: loading, classes, the table, and attention as maps and as detections."""

from pathlib import Path

import keras
import numpy as np
import yaml

from tfbig import SourceError, sources
from tfbig.cli import load_model, slide_batch
from tfbig.cli.tasks import evaluation
from tfbig.results import figures, geojson, heatmap, run_folder, slide_viewer
from tfbig.sources.slides.slide import title_of

INPUTS = {"rgb": 3, "gray": 1, "inverted-gray": 1}


def run_of(path, custom=()):
    """`(model, settings)` of a run folder, or of a `.keras` file, which has no settings; `custom` as in `saved.load`.

    Raises:
        SourceError: there is none, or it cannot be loaded.
    """
    place = Path(path)
    if not place.is_dir():
        return load_model.load(place, custom), {}
    try:
        config = yaml.safe_load((place / run_folder.CONFIG).read_text(encoding="utf-8"))
        config["task"]
    except (OSError, TypeError, KeyError, ValueError, yaml.YAMLError) as error:
        raise SourceError(
            f"{place}: is no run folder of train.py ({error}); expected one with {run_folder.CONFIG} and model.keras."
        ) from error
    return load_model.load(place / "model.keras", custom), config


def settle_input(settings, channels, own=None):
    """Sets what the network sees where it is not given.

    Raises:
        SourceError: it has another number of channels.
    """
    settings.input = settings.input or own or ("rgb" if channels == 3 else "gray")
    if INPUTS[settings.input] != channels:
        raise SourceError(
            f"{settings.model}: sees {channels} channels; --input {settings.input} has others."
        )


def settle_classes(settings, count, names=None):
    """Sets the names of classes where they are not given: those of the run, or numbers.

    Raises:
        SourceError: there are fewer or more.
    """
    settings.classes = settings.classes or names or [*map(str, range(count))]
    if len(settings.classes) != count:
        raise SourceError(
            f"--classes: {len(settings.classes)} names; the network has {count} classes."
        )


def settle_resolution(settings, config, **default):
    """Sets at which resolution slides are seen where it is not given: that of the run, or the default."""
    of_run = {key: config[key] for key in ("mpp", "magnification") if config.get(key) is not None}
    slide_batch.settle_resolution(settings, **(of_run or default))


def seen(source, settings):
    """What the network sees of an image."""
    wanted = (3,) if settings.input == "rgb" else (1, 3)
    if source.shape[2] not in wanted:
        raise SourceError(
            f"{source.name}: has {source.shape[2]} channels; the network sees {settings.input}. Convert the slide."
        )
    if settings.input == "rgb":
        return source
    return sources.Grayscale(source, invert=settings.input == "inverted-gray")


def chances(outputs, last):
    """Probabilities `[K]`, two for one output.

    Args:
        outputs: of the network, `[K]`.
        last: its last layer; whose activation is softmax or sigmoid, or which is such a layer, gives probabilities,
            and others logits.
    """
    found = np.asarray(outputs, np.float64)
    activation = getattr(getattr(last, "activation", None), "__name__", "")
    known = activation in ("softmax", "sigmoid") or isinstance(last, keras.layers.Softmax)
    if len(found) == 1:
        share = found if known else 1 / (1 + np.exp(-found))
        return np.concatenate([1 - share, share])
    return found if known else evaluation.softmax(found)


def of_slide(path, source):
    """The first columns of the table."""
    mpp = source.mpp or (None, None)
    row = {"slide": path.name, "rows": source.shape[0], "columns": source.shape[1]}
    return row | {"mpp_rows": mpp[0], "mpp_columns": mpp[1]}


def of_classes(classes, probabilities):
    """Columns of a class prediction."""
    shares = {f"probability_{n}": float(p) for n, p in zip(classes, probabilities, strict=True)}
    return {"predicted": classes[int(np.argmax(probabilities))], **shares}


def note(folder, row):
    """A row of the table, in place of an older one of the same slide."""
    run_folder.replace_row(Path(folder) / run_folder.PREDICTIONS, "slide", row["slide"], row)


def is_noted(folder, path):
    """Whether the table has a row of a slide."""
    rows = run_folder.read_rows(Path(folder) / run_folder.PREDICTIONS)
    return any(row["slide"] == path.name for row in rows)


def write_attention(settings, path, slide, coords, attention, title, scores=None):
    """Attention of tiles as detections, a picture, an OME-TIFF, and in the view of the report.

    Args:
        settings: of the command.
        path: of the slide.
        slide: the slide.
        coords: of the tiles.
        attention: of each, `[n]`.
        title: for people.
        scores: probabilities of each, `[n, classes]`, where the network has some.
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
    overlay = slide_viewer.of_values("attention", painted, share)
    figures.overlaid(folder / f"{name}.png", slide, overlay, title)
    slide_batch.write_view(settings, path, slide, [overlay])
    source = heatmap.as_source(painted, coords, slide)
    step = heatmap.pixel_of(coords)
    place = slide.georeference and slide.georeference.scaled(step, step)
    sources.write_ome_tiff(folder / f"{name}_attention.ome.tif", source, georeference=place)
