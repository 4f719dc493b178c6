"""Time and memory of `tfbig predict` on a synthetic satellite scene, with and without its nodata, and after a kill.

    python benchmarks/scenes.py --size 34000x31000                 # one line: seconds, peak memory, seams
    python benchmarks/scenes.py --size 12000x12000 --nodata 0.6 --ways compute skip
    python benchmarks/scenes.py --size 108000x97000                # 10.5 gigapixels; 4 GB of memory

The scene has three bands of uint8, compressed, and needs little disk. The network is a small U-Net whose weights are
small whole numbers, so that its sums are exact: the mask of every way must have the same pixels.
"""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[0] = str(ROOT)

import numpy as np
import rasterio
from rasterio.transform import Affine
from rasterio.windows import Window

from benchmarks import harness, report

BANDS, CLASSES = 3, 4


@dataclass(frozen=True)
class Arguments:
    size: Annotated[str, "rows x columns"] = "10800x9700"
    nodata: Annotated[float, "share of nodata"] = 0.0
    ways: Annotated[Sequence[str], ("compute", "skip", "killed")] = ("compute",)
    width: int = 4
    depth: int = 3
    device: Annotated[str, "--device-memory"] = "256MB"
    host: Annotated[str, "--host-memory"] = "2GB"
    folder: Annotated[str | None, "folder for scene and masks, such as of an earlier run"] = None


def scene_rows(top: int, rows: int, columns: int, height: int, nodata: float) -> np.ndarray:
    """Return rows of the scene, `[bands, rows, columns]`, uint8.

    Fields of 200 to 300 pixels with some texture; nodata, 0, is outside a slanted swath, as of a satellite.
    """
    y, x = np.ogrid[top : top + rows, :columns]
    fields = (y // 211 * 7 + x // 293 * 13) % 17
    texture = (y % 8 + x % 4).astype(np.uint8)
    planes = np.stack(
        [(fields * (3 + b) + 20 * b + texture + 1).astype(np.uint8) for b in range(BANDS)]
    )
    if nodata:
        width = columns * (1 - nodata)
        left = (columns - width) * (y / height)
        planes[:, (x < left) | (x >= left + width)] = 0
    return planes


def write_scene(path: Path, rows: int, columns: int, nodata: float) -> None:
    """Write the scene as a tiled, compressed GeoTIFF with CRS."""
    form: dict[str, Any] = {
        "driver": "GTiff", "height": rows, "width": columns, "count": BANDS, "dtype": "uint8", "crs": "EPSG:32632",
        "transform": Affine(10, 0, 3e5, 0, -10, 6e6), "nodata": 0, "tiled": True, "blockxsize": 512,
        "blockysize": 512, "compress": "deflate", "zlevel": 1, "interleave": "pixel", "BIGTIFF": "IF_SAFER",
        "sparse_ok": True,
    }  # fmt: skip
    with rasterio.Env(GDAL_CACHEMAX=2**28), rasterio.open(path, "w", **form) as file:
        for top in range(0, rows, 512):
            count = min(512, rows - top)
            planes = scene_rows(top, count, columns, rows, nodata)
            file.write(planes, window=Window(0, top, columns, count))


def write_model(path: Path, width: int, depth: int) -> None:
    """Write a small U-Net with whole weights."""
    import keras
    from keras import layers

    x = image = keras.Input((None, None, BANDS))
    skips = []
    for level in range(depth):
        x = layers.Conv2D(width << level, 3, padding="same", activation="relu")(x)
        skips.append(x)
        x = layers.MaxPooling2D(2)(x)
    x = layers.Conv2D(width << depth, 3, padding="same", activation="relu")(x)
    for level in reversed(range(depth)):
        x = layers.Concatenate()([layers.UpSampling2D(2)(x), skips[level]])
        x = layers.Conv2D(width << level, 3, padding="same", activation="relu")(x)
    model = keras.Model(image, layers.Conv2D(CLASSES, 1)(x))
    part = scene_rows(0, 512, 512, 512, 0.0).transpose(1, 2, 0)[None].astype("float32")
    for seed in range(100):
        rng = np.random.default_rng(seed)
        for weight in model.weights:
            weight.assign(rng.choice([-1, 0, 0, 0, 1], weight.shape))
        counts = np.bincount(np.asarray(model(part)).argmax(-1).ravel(), minlength=CLASSES)
        if counts.max() < 0.6 * counts.sum():  # so that a wrong pixel shows
            break
    model.save(path)


def predict(model: Path, scene: Path, out: Path, flags: Sequence[str]) -> dict[str, Any]:
    """Predict the scene in a process of its own, and return its seconds and greatest memory."""
    words = [sys.executable, str(ROOT / "tfbig_command.py"), "predict", str(model), str(scene)]
    began = time.monotonic()
    process = subprocess.Popen([*words, "--out", str(out), "--input", "bands", *flags])
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"predict ended with status {status}")
    return {
        "seconds": round(time.monotonic() - began, 1),
        "processor_seconds": round(usage.ru_utime + usage.ru_stime, 1),
        "peak_bytes": usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024),
    }


def kill(model: Path, scene: Path, out: Path, flags: Sequence[str], blocks: int) -> int:
    """Start a prediction, kill it with SIGKILL once it has written some blocks, and return their number."""
    words = [sys.executable, str(ROOT / "tfbig_command.py"), "predict", str(model), str(scene)]
    process = subprocess.Popen([*words, "--out", str(out), "--input", "bands", *flags])
    folder = out / f".{scene.name}.blocks"

    def written() -> int:
        return len(list(folder.glob("[0-9]*.tif")))

    while process.poll() is None and written() < blocks:
        time.sleep(0.2)
    process.send_signal(signal.SIGKILL)
    process.wait()
    return written()


def differences(first: Path, second: Path) -> int:
    """Return the number of pixels in which two masks differ."""
    count = 0
    with rasterio.open(first) as one, rasterio.open(second) as two:
        for top in range(0, one.height, 512):
            window = Window(0, top, one.width, min(512, one.height - top))
            count += int((one.read(1, window=window) != two.read(1, window=window)).sum())
    return count


def seams(model: Path, scene: Path, mask: Path, places: int) -> int:
    """Return the pixels in which a mask differs from plain Keras around corners of blocks, where seams would be."""
    import keras

    plain, wrong, rng = keras.saving.load_model(model), 0, np.random.default_rng(0)
    with rasterio.open(scene) as image, rasterio.open(mask) as found:
        corners = [
            (r, c) for r in range(4096, image.height, 4096) for c in range(4096, image.width, 4096)
        ]
        for n in rng.permutation(len(corners))[:places]:
            row, column = (
                int(min(p, m - 512) - 512) for p, m in zip(corners[n], image.shape, strict=True)
            )
            window = Window(column, row, 1024, 1024)
            pixels = image.read(window=window).transpose(1, 2, 0)
            expected = np.asarray(plain(pixels[None].astype("float32")))[0].argmax(-1)
            inside = np.s_[256:768, 256:768]
            known = (pixels != 0).any(-1)[inside]
            wrong += int((expected[inside] != found.read(1, window=window)[inside])[known].sum())
    return wrong


def main() -> None:
    for line in lines(harness.read(Arguments)):
        print(line, flush=True)


def lines(options: Arguments) -> Iterator[str]:
    """Yield a line for each way."""
    rows, columns = map(int, options.size.split("x"))
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(options.folder or temporary)
        folder.mkdir(parents=True, exist_ok=True)
        scene, model = folder / "scene.tif", folder / "model.keras"
        if not scene.exists():
            write_scene(scene, rows, columns, options.nodata)
        write_model(model, options.width, options.depth)
        budget = ["--device-memory", options.device, "--host-memory", options.host]
        masks: list[Path] = []
        for way in options.ways:
            out, more = folder / way, ["--background", "skip"] if way == "skip" else []
            killed = kill(model, scene, out, budget, 3) if way == "killed" else 0
            measured = predict(model, scene, out, [*budget, *more])
            masks.append(out / "scene.tif")
            with (out / "predictions.csv").open() as table:
                names, values = (line.strip().split(",") for line in table)
            row = dict(zip(names, values, strict=True))
            figures = {
                "way": way if not options.nodata else f"{way}, nodata {options.nodata:g}",
                "network": f"U-Net, width {options.width}, depth {options.depth}", "budget": budget,
                "nodata": float(row["share_nodata"]), "computed": float(row["computed"]),
                "scene_bytes": scene.stat().st_size, "mask_bytes": masks[-1].stat().st_size,
                "killed_after_blocks": killed, **measured,
                "different_from_first": differences(masks[0], masks[-1]) if len(masks) > 1 else 0,
                "different_from_plain": seams(model, scene, masks[-1], 8),
            }  # fmt: skip
            yield report.line("predict scene", [rows, columns, BANDS], **figures)


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    main()
