"""Predict a gigapixel slide, from file to QuPath, with a U-Net trained on crops of other slides.

    python benchmarks/whole_slide.py --slide SLIDE --others FOLDER [--epochs 3 --crops 100 --crop 2048x2048]

Trains with `train.py --mode offload` on the slides of FOLDER except SLIDE, with labels from a threshold
(`tissue_mask`); predicts SLIDE with `tfbig predict`, in its own process; reads the results: Dice against the threshold
labels of SLIDE, levels by tifffile, validity of outlines by shapely. Prints one JSON line, and writes
`whole_slide.png`. `reading_share` is the time to read the slide alone, divided by the time of the prediction.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
HERE = Path(__file__).resolve().parent
sys.path[0] = str(HERE.parent)

from benchmarks import report

ROWS = 1024


def train(arguments, folder):
    """Return the run folder of a network that never saw the slide, which is last by name and is used for validation."""
    import train as script

    data, run = folder / "data", folder / "run"
    data.mkdir()
    slide = Path(arguments.slide).resolve()
    others = [p.resolve() for p in sorted(Path(arguments.others).rglob("*.tif"))]
    for path in others:
        if path != slide:
            (data / f"a_{path.name}").symlink_to(path)
    (data / f"z_{slide.name}").symlink_to(slide)
    flags = [f"--{key}={getattr(arguments, key)}" for key in ("epochs", "crops", "crop")]
    began = time.monotonic()
    if script.main(["--data", str(data), "--out", str(run), *flags]):
        raise SystemExit("training failed")
    return run, time.monotonic() - began


def predict(run, slide, out):
    """Return the seconds and memory of `tfbig predict`, in this process."""
    from tfbig.cli.main import main

    before, _ = report.memory_bytes()
    began = time.monotonic()
    if main(["predict", str(run), str(slide), "--out", str(out), "--quiet"]):
        raise SystemExit("prediction failed")
    figures = {"predict_seconds": time.monotonic() - began}
    return figures | {"peak_bytes": report.memory_bytes()[1], "before_bytes": before}


def thumbnail(slide):
    """Return the seconds and bytes of a small picture of the slide, in this process."""
    import tfbig

    before, _ = report.memory_bytes()
    began = time.monotonic()
    tfbig.open_slide(slide).thumbnail(1024)
    seconds = time.monotonic() - began
    return {"thumbnail_seconds": seconds, "thumbnail_bytes": report.memory_bytes()[1] - before}


def read_alone(slide):
    """Return the seconds to decode the slide and convert it to gray, strip by strip."""
    import tfbig

    image = tfbig.sources.Grayscale(tfbig.open(slide), invert=True)
    began = time.monotonic()
    for start in range(0, image.shape[0], ROWS):
        image.read(start, min(start + ROWS, image.shape[0]))
    return time.monotonic() - began


def check(slide, out):
    """Return figures of the written files: Dice, levels, regions."""
    import numpy as np
    import shapely
    import tifffile

    import tfbig
    from tfbig.tissue.masks import tissue_mask

    (written,) = out.glob("*.ome.tif")
    mask, labels = tfbig.open(written), tissue_mask(tfbig.open(slide))
    both = total = 0
    for start in range(0, mask.shape[0], ROWS):
        a, b = (s.read(start, min(start + ROWS, mask.shape[0])) for s in (mask, labels))
        both += int(np.count_nonzero(a & b))
        total += int(np.count_nonzero(a)) + int(np.count_nonzero(b))
    with tifffile.TiffFile(written) as tiff:
        levels = [list(level.shape) for level in tiff.series[0].levels]
    (outlines,) = out.glob("*.geojson")
    features = json.loads(outlines.read_text())["features"]
    shapes = [shapely.from_geojson(json.dumps(f["geometry"])) for f in features]
    return {
        "dice": 2 * both / total,
        "levels": levels,
        "ome_bytes": written.stat().st_size,
        "geojson_bytes": outlines.stat().st_size,
        "regions": len(shapes),
        "valid": bool(all(shape.is_valid for shape in shapes)),
        "outline_area_ratio": sum(s.area for s in shapes) / max(_area(mask), 1),
    }


def _area(mask):
    import numpy as np

    starts = range(0, mask.shape[0], ROWS)
    strips = (mask.read(i, min(i + ROWS, mask.shape[0])) for i in starts)
    return sum(int(np.count_nonzero(strip)) for strip in strips)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--slide", required=True)
    parser.add_argument("--others", help="folder of the slides to train on")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--crops", type=int, default=100)
    parser.add_argument("--crop", default="2048x2048")
    parser.add_argument("--run", help="a run folder; nothing is trained")
    parser.add_argument("--only", metavar="OUT", help="predict, or a thumbnail, in this process")
    parser.add_argument("--picture", default=str(HERE / "whole_slide.png"))
    arguments = parser.parse_args()
    if arguments.only == "thumbnail":
        print(json.dumps(thumbnail(arguments.slide)))
        return
    if arguments.only:
        print(json.dumps(predict(arguments.run, arguments.slide, Path(arguments.only))))
        return
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        seconds = None
        if arguments.run is None:
            arguments.run, seconds = train(arguments, folder)
        out = folder / "found"
        flags = [f"--slide={arguments.slide}", f"--run={arguments.run}", f"--only={out}"]
        figures = report.in_own_process([__file__, *flags])
        figures |= report.in_own_process(
            [__file__, f"--slide={arguments.slide}", "--only=thumbnail"]
        )
        figures["read_seconds"] = read_alone(arguments.slide)
        figures["reading_share"] = figures["read_seconds"] / figures["predict_seconds"]
        figures |= check(arguments.slide, out)
        (picture,) = out.glob("*.png")
        shutil.copyfile(picture, arguments.picture)
    settings = {key: getattr(arguments, key) for key in ("epochs", "crops", "crop")}
    size = [*figures["levels"][0], 3]
    print(report.line("whole_slide", size, **settings, train_seconds=seconds, **figures))


if __name__ == "__main__":
    main()
