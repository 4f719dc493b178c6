"""What a network finds on slides of any size: OME-TIFF and GeoJSON for QuPath, a picture, and a table."""

import csv
import tempfile
from pathlib import Path

import keras
import numpy as np
import yaml

import tfbig
from models import settings as command_line
from models.commands import each_slide
from models.gigapixel_unet import STRIDE
from tfbig import SourceError, geojson, pictures, progress, runfolder, sources, zoom
from tfbig.sources.slide import title_of

TABLE = "predictions.csv"
INPUTS = {"rgb": 3, "gray": 1, "inverted-gray": 1}


def add_flags(add):
    """Flags of this command."""
    add("model", metavar="MODEL", help="run folder of train.py, or a .keras file: images to masks")
    each_slide.add_flags(add)
    add(
        "--input",
        choices=list(INPUTS),
        help="what the network sees; inverted: the white ground is 0 (default: that of the run; else by its channels)",
    )
    each_slide.add_resolution(add, "what it sees", "--level 0, as train.py takes slides")
    add(
        "--stride",
        type=command_line.count,
        help="rows and columns of the network's input are multiples of it; slides are padded "
        f"(default: {STRIDE} for the gigapixel U-Net of a run, else 32)",
    )
    add("--classes", nargs="+", metavar="NAME", help="(default: background, tissue; or numbers)")
    add("--threshold", type=float, default=0.5, help="of one output (default: 0.5)")
    add(
        "--smallest",
        type=float,
        default=16,
        help="regions of fewer pixels of the small image, of which outlines are made, are no regions (default: 16)",
    )
    add("--probabilities", action="store_true", help="write NAME_probabilities.ome.tif too")
    command_line.add_memory(add)


def run(settings):
    """Predicts every slide; gives the exit code."""
    each_slide.settle_resolution(settings, level=0)
    if settings.quiet:
        progress.show(False)
    network = _Network(settings)
    folder = Path(settings.out)

    def finished(path):
        return (folder / f"{title_of(path)}.ome.tif").exists()  # written last

    return each_slide.run(settings, network.predict, finished)


class _Network:
    """The streamed model, and how a slide becomes its input and its output a result."""

    def __init__(self, settings):
        self.settings, self.folder = settings, Path(settings.out)
        path = Path(settings.model)
        run = path.is_dir()
        task = _task(path) if run else None
        plain = _loaded(path / "model.keras" if run else path)
        (image, *_), (output, *_) = plain.inputs, plain.outputs
        if len(image.shape) != 4 or len(output.shape) != 4:
            raise SourceError(
                f"{path}: takes {image.shape} to {output.shape}; expected images [N, H, W, C] to masks [N, H, W, K]."
            )
        channels, self.outputs = image.shape[-1], output.shape[-1]
        own = "inverted-gray" if task == "segmentation" else "rgb" if channels == 3 else "gray"
        settings.input = settings.input or own
        settings.stride = settings.stride or (STRIDE if task == "segmentation" else 32)
        if INPUTS[settings.input] != channels:
            raise SourceError(
                f"{path}: sees {channels} channels; --input {settings.input} has others."
            )
        count = max(self.outputs, 2)
        names = ["background", "tissue"] if task == "segmentation" else [*map(str, range(count))]
        settings.classes = settings.classes or names
        if len(settings.classes) != count:
            raise SourceError(
                f"--classes: {len(settings.classes)} names; the network has {count} classes."
            )
        budget = tfbig.Budget(settings.device_memory, settings.host_memory)
        self.model = tfbig.stream(plain, budget)

    def predict(self, path, slide):
        """Everything about one slide; gives a line about it."""
        settings = self.settings
        source = slide.at(**each_slide.resolution(settings))
        rows, columns = source.shape[:2]
        if settings.dry_run:
            return f"{slide.describe()}: would be seen at {rows} x {columns}"
        name = title_of(path)
        image = sources.Padded(self._seen(source), settings.stride)
        with tempfile.TemporaryDirectory(prefix=".part-", dir=self.folder) as scratch:
            found = self.model.predict_to(image, f"{scratch}/found.npy", self._converted)
            found = found.crop((0, rows), (0, columns))
            found.mpp = source.mpp
            labels = sources.Channels(found, 0, 1)
            small, factor = geojson.small_labels(labels)
            step = factor * slide.shape[0] / rows
            shapes = geojson.regions(small, step, settings.smallest)
            count = geojson.write_geojson(
                self.folder / f"{name}.geojson", geojson.region_features(shapes, settings.classes)
            )
            pictures.regions(self.folder / f"{name}.png", slide, small, settings.classes, name)
            found_here = zoom.of_classes("found", small, settings.classes)
            each_slide.write_view(settings, path, slide, [found_here])
            place = slide.georeference and slide.georeference.scaled(*_steps(slide, source))
            if settings.probabilities:
                path_of = self.folder / f"{name}_probabilities.ome.tif"
                sources.write_ome_tiff(path_of, sources.Channels(found, 1), georeference=place)
            shares = np.bincount(small.ravel(), minlength=len(settings.classes)) / small.size
            self._note(path, source, shares, count)
            mask = self.folder / f"{name}.ome.tif"
            sources.write_ome_tiff(mask, labels, labels=True, georeference=place)
        told = ", ".join(f"{s:.1%} {n}" for s, n in zip(shares, settings.classes, strict=True))
        return f"{path.name}: {rows} x {columns}, {told}, {count} regions"

    def _converted(self, outputs):
        """Classes, and where they are wanted probabilities in 255ths, `[r, W, ...]`, uint8."""
        if self.outputs == 1:
            classes = (outputs > self.settings.threshold).astype(np.uint8)
        else:
            classes = outputs.argmax(2)[..., None].astype(np.uint8)
        if not self.settings.probabilities:
            return classes
        chances = np.rint(np.clip(outputs, 0, 1) * 255).astype(np.uint8)
        return np.concatenate([classes, chances], axis=2)

    def _seen(self, source):
        """What the network sees."""
        return (
            source
            if self.settings.input == "rgb"
            else sources.Grayscale(source, invert=self.settings.input == "inverted-gray")
        )

    def _note(self, path, source, shares, count):
        """A row of the table, in place of an older one of the same slide."""
        table = self.folder / TABLE
        rows = []
        if table.exists():
            with table.open(newline="", encoding="utf-8") as file:
                rows = [row for row in csv.DictReader(file) if row["slide"] != path.name]
        mpp = source.mpp or (None, None)
        row = {"slide": path.name, "rows": source.shape[0], "columns": source.shape[1]}
        row |= {"mpp_rows": mpp[0], "mpp_columns": mpp[1], "regions": count}
        row |= {f"share_{n}": s for n, s in zip(self.settings.classes, shares, strict=True)}
        if source.mpp is not None:
            area = np.prod(source.shape[:2]) * mpp[0] * mpp[1] / 1e6
            areas = {
                f"mm2_{n}": s * area for n, s in zip(self.settings.classes, shares, strict=True)
            }
        else:
            areas = {f"mm2_{n}": None for n in self.settings.classes}
        runfolder.write_csv(table, [*rows, row | areas])


def _steps(slide, source):
    """Rows and columns of level 0 in a pixel of a source of the whole slide."""
    return [n / m for n, m in zip(slide.shape[:2], source.shape[:2], strict=True)]


def _task(folder):
    """Of a run folder."""
    try:
        return yaml.safe_load((folder / runfolder.CONFIG).read_text(encoding="utf-8"))["task"]
    except (OSError, TypeError, KeyError, yaml.YAMLError) as error:
        raise SourceError(
            f"{folder}: is no run folder of train.py ({error}); expected one with {runfolder.CONFIG} and model.keras."
        ) from error


def _loaded(path):
    """A `.keras` file, as data: Keras' safe mode runs no code of it."""
    if not path.exists():
        raise SourceError(
            f"{path}: there is no such file; expected a .keras file, or a run folder."
        )
    try:
        return keras.models.load_model(path, compile=False)
    except Exception as error:  # zip's, HDF5's, JSON's, Keras' own
        raise SourceError(
            f"{path}: cannot be loaded as a Keras model ({type(error).__name__}: {error}). Save it with "
            "model.save('name.keras')."
        ) from error
