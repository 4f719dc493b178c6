"""Nuclei of the Data Science Bowl 2018: train, and label a mosaic of any size.

    python benchmarks/nuclei.py table FOLDER                    # images.csv, with look-alikes in one split
    tfbig train --task instances --mode device --data FOLDER --filters 8 --epochs 30 --out runs/nuclei
    python benchmarks/nuclei.py mosaic FOLDER mosaic.ome.tif --size 50000x95000
    python benchmarks/nuclei.py predict runs/nuclei mosaic.ome.tif OUT
    python benchmarks/nuclei.py label runs/nuclei FOLDER --size 50000x95000
    python benchmarks/nuclei.py check runs/nuclei FOLDER --size 2000x3000
    python benchmarks/nuclei.py epochs FOLDER OUT --filters 8   # seconds of an epoch

FOLDER holds pictures and masks/NAME.png, one number for each nucleus. `predict` runs `tfbig predict`, `label` labels a
mosaic of the maps of the pictures without the network, and `check` compares the instances of strips of several heights
with those of the whole image, and `epochs` trains for one epoch and for three; each prints a JSON line.
"""

from __future__ import annotations

import argparse
import csv
import os
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
sys.path[0] = str(Path(__file__).resolve().parent.parent)

import numpy as np
import numpy.typing as npt
from PIL import Image
from scipy.cluster import hierarchy
from scipy.spatial import distance

from benchmarks import report
from tfbig import sources
from tfbig.sources import Source

ALIKE = 4.0
"""Largest difference between means and deviations of colours, in gray levels, of pictures of one group."""
WIDTH, HEIGHT = 320, 256
STRIP_ROWS = (1, 37, 256, 1000)
"""Heights of strips that are compared with the whole image."""

CROPS = 64
"""Crops of an epoch whose time is measured."""


class Mosaic(Source):
    """Pictures side by side, drawn by a seed and flipped at random.

    Args:
        pictures: Pictures of 256 x 320, of the same number of channels.
        shape: Rows and columns.
        seed: Random seed.
    """

    def __init__(
        self, pictures: Sequence[npt.NDArray[np.uint8]], shape: tuple[int, int], seed: int = 0
    ) -> None:
        super().__init__(
            (*shape, pictures[0].shape[2]), np.uint8, f"mosaic of {shape[0]} x {shape[1]}"
        )
        self.mpp = (0.25, 0.25)
        self._pictures, self._seed = pictures, seed

    def _read(self, start: int, stop: int) -> npt.NDArray[Any]:
        first, last = start // HEIGHT, -(-stop // HEIGHT)
        bands = [self._band(number) for number in range(first, last)]
        return np.concatenate(bands)[start - first * HEIGHT : stop - first * HEIGHT]

    def _band(self, number: int) -> npt.NDArray[Any]:
        count = -(-self.shape[1] // WIDTH)
        rng = np.random.default_rng([self._seed, number])
        chosen, flips = rng.integers(len(self._pictures), size=count), rng.integers(4, size=count)
        steps = [(1 - 2 * (flip & 1), 1 - 2 * (flip >> 1)) for flip in flips.tolist()]
        row = [self._pictures[n][::a, ::b] for n, (a, b) in zip(chosen, steps, strict=True)]
        return np.concatenate(row, axis=1)[:, : self.shape[1]]


def table(folder: Path) -> None:
    """Write images.csv; pictures whose colours are alike are one group, as they may be crops of one field."""
    files = sorted(folder.glob("*.png"))
    facts = []
    for file in files:
        pixels = np.asarray(Image.open(file)).reshape(-1, 3).astype(float)
        facts.append([*pixels.mean(0), *pixels.std(0)])
    distances = distance.pdist(np.array(facts), "chebyshev")
    groups = hierarchy.fcluster(hierarchy.linkage(distances, "single"), ALIKE, "distance")
    with (folder / "images.csv").open("w", newline="") as out:
        writer = csv.writer(out)
        writer.writerow(["image", "mask", "patient"])
        for file, group in zip(files, groups, strict=True):
            writer.writerow([file.name, f"masks/{file.name}", f"group-{group}"])
    print(f"{len(files)} pictures in {len(set(groups))} groups")


def pictures_of(folder: Path) -> list[npt.NDArray[np.uint8]]:
    """Return the pictures of a folder that have the size of a tile."""
    pictures = [np.asarray(Image.open(file)) for file in sorted(folder.glob("*.png"))]
    return [each for each in pictures if each.shape == (HEIGHT, WIDTH, 3)]


def mosaic(folder: Path, path: Path, size: tuple[int, int]) -> None:
    """Write a mosaic as OME-TIFF in JPEG."""
    began = time.perf_counter()
    sources.write_ome_tiff(path, Mosaic(pictures_of(folder), size), compression="jpeg")
    print(f"{path}: {path.stat().st_size} bytes, {time.perf_counter() - began:.0f} s")


def epochs(folder: Path, out: Path, filters: int) -> None:
    """Train for one epoch and for three, and print a JSON line with the seconds that a crop takes in an epoch."""
    spent = []
    for number in (1, 3):
        command = [sys.executable, "tfbig_command.py", "train", "--task", "instances"]
        flags = ["--data", str(folder), "--filters", str(filters), "--crops", str(CROPS)]
        run = ["--epochs", str(number), "--out", str(out / f"epochs-{number}"), "--quiet"]
        before = _processor_seconds()
        subprocess.run([*command, *flags, *run], check=True)
        spent.append(_processor_seconds() - before)
    epoch = (spent[1] - spent[0]) / 2
    print(
        report.line(
            "nuclei epochs",
            [256, 256, 3],
            filters=filters,
            crops=CROPS,
            processor_seconds=round(epoch, 1),
            processor_seconds_of_crop=round(epoch / CROPS, 2),
            processor_seconds_of_run=round(spent[0], 1),
            how=f"python benchmarks/nuclei.py epochs FOLDER OUT --filters {filters}",
        )
    )


def _processor_seconds() -> float:
    """Return the processor time of all processes that this one started."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def predict(run: Path, slide: Path, out: Path, strips: str, host: str) -> None:
    """Run `tfbig predict` and print a JSON line."""
    shape = sources.open_slide(slide).shape
    began = time.perf_counter()
    limits = ["--device-memory", strips, "--host-memory", host]
    command = [sys.executable, "tfbig_command.py", "predict", str(run), str(slide)]
    subprocess.run([*command, "--out", str(out), *limits, "--quiet"], check=True)
    seconds = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    with (out / f"{slide.name.split('.')[0]}_instances.csv").open() as file:
        count = sum(1 for _ in file) - 1
    print(
        report.line(
            "nuclei mosaic",
            list(shape),
            seconds=round(seconds, 1),
            processor_seconds=round(_processor_seconds(), 1),
            peak_bytes=peak,
            instances=count,
            how=f"python benchmarks/nuclei.py predict runs/nuclei mosaic.ome.tif OUT {' '.join(limits)}",
        )
    )


def label(run: Path, folder: Path, size: tuple[int, int]) -> None:
    """Label a mosaic of the maps of the pictures, and print a JSON line with time and memory."""
    import keras

    from tfbig.results.instances import Thresholds, label_strips, strip_height

    model = keras.models.load_model(run / "model.keras", compile=False)
    maps = [
        np.rint(model.predict_on_batch(each[None])[0] * 255).astype(np.uint8)
        for each in pictures_of(folder)
    ]
    del model
    image = Mosaic(maps, size)
    base, _ = report.memory_bytes()
    began, spent, count = time.perf_counter(), time.process_time(), 0
    height = strip_height(size[1])
    strips = (image.read(i, min(i + height, size[0])) for i in range(0, size[0], height))
    for strip in label_strips(strips, Thresholds(127.5, 127.5)):
        count = max(count, int(strip.max()))
    print(
        report.line(
            "nuclei labelling",
            list(size),
            seconds=round(time.perf_counter() - began, 1),
            processor_seconds=round(time.process_time() - spent, 1),
            base_bytes=base,
            peak_bytes=report.memory_bytes()[1],
            instances=count,
            how=f"python benchmarks/nuclei.py label runs/nuclei FOLDER --size {size[0]}x{size[1]}",
        )
    )


def check(run: Path, folder: Path, size: tuple[int, int]) -> None:
    """Compare the instances of strips with those of scikit-image on the whole image, and print a JSON line."""
    import keras
    from scipy import ndimage
    from skimage.segmentation import watershed

    from tfbig.results.instances import Thresholds, label_strips

    model = keras.models.load_model(run / "model.keras", compile=False)
    image = Mosaic(pictures_of(folder), size)
    height = HEIGHT  # the maps need not be those of the whole image: any maps have instances
    parts = []
    for start in range(0, size[0], height):
        rows = image.read(start, min(start + height, size[0]))
        padded = np.pad(rows, [(0, -n % 32) for n in rows.shape[:2]] + [(0, 0)])
        parts.append(model.predict_on_batch(padded[None])[0, : len(rows), : size[1]])
    maps = np.rint(np.concatenate(parts) * 255).astype(np.uint8)
    mask = maps[..., 0] > 127.5
    markers = ndimage.label(mask & (maps[..., 1] > 127.5))[0]
    heights = -maps[..., 1].astype(float)
    heights[markers > 0] = heights.min() - 1 - np.arange(np.count_nonzero(markers))[::-1]
    whole = watershed(heights, markers, mask=mask)
    counts = {}
    for strip_rows in STRIP_ROWS:
        strips = (maps[i : i + strip_rows] for i in range(0, size[0], strip_rows))
        found = np.concatenate(list(label_strips(strips, Thresholds(127.5, 127.5))))
        pairs = np.unique(np.stack([whole.ravel(), found.ravel()]), axis=1)
        same = pairs.shape[1] == len(np.unique(whole)) == len(np.unique(found))
        counts[str(strip_rows)] = int(found.max()) if same else "differs"
    fields: dict[str, Any] = {"whole": len(np.unique(whole)) - 1, "strips": counts}
    how = f"python benchmarks/nuclei.py check runs/nuclei FOLDER --size {size[0]}x{size[1]}"
    print(report.line("nuclei instances of strips", list(size), **fields, how=how))


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("what", choices=["table", "mosaic", "predict", "label", "check", "epochs"])
    parser.add_argument("paths", nargs="+", type=Path)
    parser.add_argument("--size", default="2000x3000")
    parser.add_argument("--device-memory", default="256MB")
    parser.add_argument("--host-memory", default="4GB")
    parser.add_argument("--filters", type=int, default=16)
    arguments = parser.parse_args()
    rows, columns = map(int, arguments.size.split("x"))
    paths = arguments.paths
    if arguments.what == "table":
        table(*paths)
    elif arguments.what == "mosaic":
        mosaic(*paths, (rows, columns))
    elif arguments.what == "label":
        label(*paths, (rows, columns))
    elif arguments.what == "epochs":
        epochs(*paths, arguments.filters)
    elif arguments.what == "check":
        check(*paths, (rows, columns))
    else:
        predict(*paths, arguments.device_memory, arguments.host_memory)


if __name__ == "__main__":
    main()
