"""Predict classes or values of satellite scenes: a cloud-optimised GeoTIFF, a picture, and areas in the table."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import tfbig
from tfbig.cli import machine, scene_blocks, slide_batch
from tfbig.cli.data import background
from tfbig.cli.identity import of_model
from tfbig.cli.input_kinds import SCENES
from tfbig.cli.paths import FlagError
from tfbig.cli.predictors import results
from tfbig.cli.predictors.predictor import Predictor
from tfbig.cli.predictors.results import Config
from tfbig.cli.scene_blocks import Predicted, SceneOutputs
from tfbig.cli.settings.choices import BANDS
from tfbig.cli.settings.slide_settings import PredictSettings
from tfbig.results import scene_pictures, slide_viewer
from tfbig.sources.names import title_of
from tfbig.sources.scenes.measured import FilledScene
from tfbig.sources.scenes.raster import RasterSlide, RasterSource
from tfbig.streaming import regions
from tfbig.system.output_folder import file_in

TASK = "scenes"
_OF_SLIDES = (
    "is for slides, whose background is glass; scenes have nodata. Use --background skip alone."
)


class Scenes(Predictor):
    """Predictor for networks from the bands of a scene to classes or values of its pixels."""

    inputs = SCENES
    row = "scene"

    def __init__(self, settings: PredictSettings, plain: Any, config: Config) -> None:
        super().__init__(settings)
        self.config = config
        for name in background.FLAGS:
            if getattr(settings, name) is not None:
                raise FlagError(f"--{name.replace('_', '-')}: {_OF_SLIDES}")
        slide_batch.refuse_resolution(settings, "scenes are read at the size of their pixels.")
        self.skips = (settings.background or config.get("background")) == "skip"
        self.bands, channels = plain.inputs[0].shape[-1], plain.outputs[0].shape[-1]
        if config.get("target") == "regression" or (not config and _is_linear(plain)):
            self.outputs = SceneOutputs((), channels)
        else:
            names = results.classes_of(settings, max(channels, 2), config.get("class_names"))
            probabilities = settings.probabilities
            self.outputs = SceneOutputs(names, channels, settings.threshold, probabilities)
        self.settings = replace(
            settings, input=BANDS, class_names=self.outputs.classes or None, reader="rasterio"
        )
        self.model = tfbig.stream(
            plain, machine.budget(settings), source_dtype="float32", unsupported="device"
        )
        self.multiple = regions.step(self.model) or settings.pad_to or 32
        self.identity = {
            "model": of_model(plain),
            "threshold": settings.threshold,
            "fill": config.get("mean"),
        }

    @staticmethod
    def reads(settings: PredictSettings, plain: Any, config: Config) -> bool:
        """Tell whether a model is one for scenes: of a run with scenes, by `--input`, or by its number of bands."""
        if config.get("task") == TASK or settings.input == BANDS:
            return True
        shapes = plain.inputs[0].shape, plain.outputs[0].shape
        is_map = [len(shape) for shape in shapes] == [4, 4]
        return is_map and not config and shapes[0][-1] not in (1, 3) and settings.input is None

    def finished(self, path: Path) -> bool:
        """Tell whether the scene is done; its mask is written last."""
        return self._file(path).exists()

    def predict(self, path: Path, slide: RasterSlide) -> str:
        """Predict a scene, write the results and return a line to print."""
        scene = slide.scene
        scene_blocks.check_bands(scene, self.bands, self.settings.model)
        rows, columns = scene.shape[:2]
        if self.settings.dry_run:
            return f"{slide.describe()}: would be predicted"
        fill = scene_blocks.fill_of(self.config.get("mean"), scene)
        image = FilledScene(scene, fill, self.multiple)
        mask = self._file(path)
        done = scene_blocks.predict(
            self.model, image, mask, self.outputs, self.identity, self.skips
        )
        words = self._write(path, slide, RasterSource(mask), done)
        return f"{path.name}: {rows} x {columns}, {words}"

    def _file(self, path: Path) -> Path:
        return file_in(self.folder, f"{title_of(path)}.tif")

    def _write(self, path: Path, slide: RasterSlide, mask: RasterSource, done: Predicted) -> str:
        """Write a picture, the view of the report and the row of a scene; return what was found in words."""
        scene, classes = slide.scene, self.outputs.classes
        pixels, known = mask.reduced(scene_pictures.SIDE)
        picture = scene_pictures.preview(scene)
        first = pixels[..., 0]
        if classes:
            layer = scene_pictures.class_layer(first, known, classes, "prediction")
        else:
            limits = scene_pictures.limits_of(first, known)
            layer = scene_pictures.value_layer(first, known, limits, "prediction")
        name = title_of(path)
        scene_pictures.draw(file_in(self.folder, f"{name}.png"), picture, [layer], name)
        slide_viewer.write_view(self.folder, name, picture, [layer], title=path.name)
        row: dict[str, Any] = {
            "scene": path.name,
            "rows": slide.shape[0],
            "columns": slide.shape[1],
        }
        row["crs"] = scene.grid.describe().partition(",")[0]
        area, total = scene.grid.square_metres, slide.shape[0] * slide.shape[1]
        row["share_nodata"] = done.nodata / total if classes else 1 - float(known.mean())
        found = ""
        if classes:
            each = list(zip(classes, done.counts.tolist(), strict=True))
            row |= {f"share_{name}": n / total for name, n in each}
            row |= {f"km2_{name}": area and area * n / 1e6 for name, n in each}
            largest = sorted(each, key=lambda pair: -pair[1])[:5]
            found = ", ".join(f"{n / total:.1%} {name}" for name, n in largest)
        elif known.any():
            values = first[known]
            row |= {
                "mean": float(np.mean(values)),
                "min": float(values.min()),
                "max": float(values.max()),
            }
            found = f"about {row['min']:.4g} to {row['max']:.4g}, mean {row['mean']:.4g}"
        computed = {} if done.computed is None else {"computed": done.computed}
        self.write_row(row | computed)
        words = [found, f"{row['share_nodata']:.1%} nodata"]
        if self.skips and done.computed is not None:
            words.append(f"{done.computed:.1%} computed")
        return ", ".join(word for word in words if word)


def _is_linear(plain: Any) -> bool:
    """Tell whether the last layer of a model with one channel has no activation, so that it gives values."""
    return plain.outputs[0].shape[-1] == 1 and results.activation_of(plain.layers[-1]) == "linear"
