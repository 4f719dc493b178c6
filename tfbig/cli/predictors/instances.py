"""Predict the instances of a slide: numbers as OME-TIFF, outlines as GeoJSON, a table, and a picture."""

from __future__ import annotations

import csv
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import shapely
from PIL import Image

import tfbig
from tfbig import SourceError, sources
from tfbig.cli import machine, messages, slide_batch
from tfbig.cli.identity import of_file, of_model
from tfbig.cli.predictors import masks, results
from tfbig.cli.predictors.predictor import Predictor
from tfbig.cli.predictors.results import Config
from tfbig.cli.settings import flag
from tfbig.cli.settings.instance_settings import InstanceNetwork
from tfbig.cli.settings.slide_settings import PredictSettings
from tfbig.cli.tasks.instances import FOUND, as_maps, as_picture, borders, thresholds_of
from tfbig.results import geojson, instance_table, outlines, slide_viewer
from tfbig.results.instances import Instances as Labelled
from tfbig.sources.names import title_of
from tfbig.sources.slides.slide import Slide
from tfbig.sources.writing import atomic_write, resumable_folder
from tfbig.system import progress
from tfbig.system.output_folder import file_in
from tfbig.units import counted

NUM_MAPS: Final = 2
"""Outputs of the network: foreground and distance."""
SHOWN: Final = 1024
"""Largest side of the picture, a part from the middle of the slide."""
OF_RUN: Final = ("channels", "z", "percentiles", "threshold", "marker_threshold")
"""Settings that are those of the run, unless flags give them."""


class Instances(Predictor):
    """Predictor for networks from images to the foreground and the distance of instances."""

    def __init__(self, settings: PredictSettings, plain: Any, config: Config) -> None:
        outputs = plain.outputs[0].shape[-1]
        if outputs != NUM_MAPS:
            raise SourceError(
                f"{settings.model}: has {outputs} outputs; --instances expects 2, foreground and distance."
            )
        super().__init__(settings)
        self.input_channels = plain.inputs[0].shape[-1]
        self.classes = results.classes_of(settings, 2, ("background", "instance"))
        settings = with_run(settings, config)
        stride = settings.pad_to or 2 ** int(config.get("depth", 5))
        settings = replace(settings, pad_to=stride, class_names=self.classes, instances=True)
        self.settings = slide_batch.with_resolution(settings, level=0)
        self.stride = stride
        self._identity = of_model(plain)
        self.model = tfbig.stream(plain, machine.budget(settings))

    def predict(self, path: Path, slide: Slide) -> str:
        """Predict a slide, write the results and return a line to print."""
        image = slide.at(**slide_batch.resolution(self.settings))
        rows, columns = image.shape[:2]
        if self.settings.dry_run:
            return f"{slide.describe()}: would be read at {rows} x {columns} pixels"
        self._check_samples(path, image)
        labels = file_in(self.folder, f"{title_of(path)}.ome.tif")
        kept = file_in(self.folder, f".{title_of(path)}.maps")
        self._write_labels(labels, self._maps(kept, path, image), slide)
        found = tfbig.open(labels)
        count, area = self._write_table(path, slide, image, found)
        self._draw(path, slide, image, found)
        self._write_row(path, image, count, area)
        shutil.rmtree(kept)
        return f"{path.name}: {rows} x {columns}, {count} instances, {area / (rows * columns):.1%} of the area"

    def _maps(self, kept: Path, path: Path, image: sources.Source) -> sources.Source:
        """Predict foreground and distance of an image, or open those of an interrupted process."""
        decides = {"model": self._identity, "size": image.shape, **flag.deciding(self.settings)}
        file = resumable_folder(kept, decides | of_file(path)) / "maps.npy"
        if file.exists():
            whole = tfbig.open(file)
        else:
            padded = sources.Padded(image, self.stride)
            whole = self.model.predict_to(padded, str(file), as_maps)
        maps = whole.crop((0, image.shape[0]), (0, image.shape[1]))
        maps.mpp = image.mpp
        return maps

    def _check_samples(self, path: Path, image: sources.Source) -> None:
        """Check that an image has the channels of the network, in 8 bits.

        Raises:
            SourceError: It has not.
        """
        found, expected = image.shape[2], self.input_channels
        if found == expected and image.dtype == np.uint8:
            return
        advice = [] if found == expected else [messages.other_channels(found, expected)]
        if image.dtype != np.uint8:
            advice.append("Use --percentiles 1 99.8 to make 8 bits of the samples.")
        raise SourceError(
            f"{path}: has {counted(found, 'channel')} of {image.dtype}; the network expects {expected} of uint8. "
            f"{' '.join(advice)}"
        )

    def _write_labels(self, file: Path, maps: sources.Source, slide: Slide) -> None:
        """Write the numbers of the instances as they are found."""
        marker = self.settings.marker_threshold
        assert marker is not None  # `with_run` sets it
        limits = thresholds_of(self.settings.threshold, marker)
        with progress.reporting(f"writing {file.name}") as ticked:
            sources.write_ome_tiff(
                file,
                Labelled(maps, limits),
                labels=True,
                channel_names=["instance"],
                georeference=slide.georeference
                and slide.georeference.scaled(*masks.steps_of(slide, maps)),
                ticked=ticked,
            )
        masks.write_zarr_labels(self.settings, slide, tfbig.open(file))

    def _write_table(
        self, path: Path, slide: Slide, image: sources.Source, found: sources.Source
    ) -> tuple[int, int]:
        """Write the table of the instances and their outlines; return their number and their area in pixels."""
        measured = _measured_image(path, image, self.settings)
        names = slide.channel_names or tuple(map(str, range(measured.shape[2])))
        steps = masks.steps_of(slide, image)
        title, total = title_of(path), [0, 0]
        with (
            atomic_write(file_in(self.folder, f"{title}_instances.csv")) as part,
            part.open("w") as file,
        ):
            writer = csv.writer(file, lineterminator="\n")

            def features() -> Iterator[tuple[shapely.Geometry, Mapping[str, float]]]:
                with progress.reporting("measuring") as ticked:
                    each: instance_table.Instance
                    for each in instance_table.measured_instances(
                        found, measured, names, ticked=ticked
                    ):
                        row = _with_um2(each.measured, image.mpp)
                        if not total[0]:
                            writer.writerow(row)
                        writer.writerow(_short(value) for value in row.values())
                        total[0] += 1
                        total[1] += int(row["area"])
                        yield outlines.placed(each.outline, steps), row

            outlined = geojson.instance_features(features(), self.classes[1])
            slide_batch.write_outlines(self.settings, path, slide, outlined)
            if not total[0]:
                writer.writerow(["label"])
        return total[0], total[1]

    def _draw(self, path: Path, slide: Slide, image: sources.Source, found: sources.Source) -> None:
        """Draw the borders of instances in the middle of the slide, and all of them in the view of the report."""
        window = [
            ((n - min(n, SHOWN)) // 2, (n - min(n, SHOWN)) // 2 + min(n, SHOWN))
            for n in image.shape[:2]
        ]
        pixels = as_picture(image.read_window(window[0], window[1])).copy()
        labels = found.read_window(window[0], window[1])[..., 0]
        pixels[borders(labels)] = FOUND
        with atomic_write(file_in(self.folder, f"{title_of(path)}.png")) as part:
            Image.fromarray(pixels).save(part)
        if slide.shape[2] in (1, 3):
            step = max(max(found.shape[:2]) // slide_viewer.MAX_SIDE, 1)
            starts = range(0, found.shape[0], step)
            small = np.concatenate([found.read(i, i + 1)[:, ::step, 0] for i in starts])
            shown = (small > 0) + borders(small).astype(np.uint8)
            down, across = (step * n / m for n, m in zip(small.shape, found.shape, strict=False))
            overlay = slide_viewer.class_overlay(
                "instances", shown, (*self.classes, "border"), across, height=down
            )
            slide_batch.write_view(self.settings, path, slide, [overlay])

    def _write_row(self, path: Path, image: sources.Source, count: int, area: int) -> None:
        """Write the row of the slide, in place of an older one."""
        row = results.slide_columns(path, image) | {"instances": count}
        row |= {"share_instances": area / (image.shape[0] * image.shape[1])}
        if image.mpp is not None:
            row["mm2_instances"] = area * image.mpp[0] * image.mpp[1] / 1e6
        self.write_row(row)


def with_run(settings: PredictSettings, config: Config) -> PredictSettings:
    """Fill in the settings of the run where no flag gives another value."""
    defaults = PredictSettings(model="", slides=(), out="")
    changed: dict[str, Any] = {}
    for name in OF_RUN:
        saved = config.get(name)
        if saved is not None and getattr(settings, name) == getattr(defaults, name):
            changed[name] = tuple(saved) if isinstance(saved, list) else saved
    if settings.marker_threshold is None:
        changed.setdefault("marker_threshold", InstanceNetwork.marker_threshold)
    return replace(settings, **changed)


def _measured_image(path: Path, image: sources.Source, settings: PredictSettings) -> sources.Source:
    """The image whose intensities are measured: before percentiles, if the resolution is that of the file."""
    if settings.percentiles is None:
        return image
    slide = sources.open_slide(
        path, reader=settings.reader, channels=settings.channels, z=settings.z
    )
    for level, size in enumerate(slide.levels):
        if size == image.shape[:2]:
            return slide.level(level)
    slide.close()
    return image


def _with_um2(measured: Mapping[str, float], mpp: tuple[float, float] | None) -> dict[str, float]:
    """Add the area in square micrometres to measurements, if the size of pixels is known."""
    return dict(measured) | (
        {} if mpp is None else {"area_um2": measured["area"] * mpp[0] * mpp[1]}
    )


def _short(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.6g}"
