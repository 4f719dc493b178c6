"""Small training runs from the command line, and readers of the files they write."""

from __future__ import annotations

import csv
import json
import os
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import drawn_folders
import keras
import numpy as np
import pytest
import tifffile
from PIL import Image

import train
from tfbig.engine import machine_rates
from tfbig.results import figures, slide_viewer

SEGMENTATION = ["--crop", "128x256", "--crops", "4", "--epochs", "2", "--seed", "4"]
"""A small run of `--task segmentation`, without `--data` and `--out`."""

MIL = [
    *("--task", "mil", "--data", drawn_folders.bags(6, 4, 4), "--epochs", "1"),
]
"""A small run of `--task mil` on drawn shapes, without `--out`."""

WHOLE_SLIDES = [
    *("--task", "images", "--images", "slides", "--mpp", "2.0", "--latent", "8"),
    *("--head-width", "8", "--encoder", "small", "--epochs", "1", "--batch-size", "1"),
]
"""A small run of `--task images` on whole slides, without `--mode`, `--head`, `--data` and `--out`."""


def whole_slides(mode: str) -> list[str]:
    """Return a small run on whole slides, in a mode of which one has patches."""
    return [*WHOLE_SLIDES, "--mode", mode, *(("--patch", "40") if mode == "patchgd" else ())]


SLIDE_BAGS = [
    *("--task", "mil", "--bags", "slides", "--mpp", "1.0", "--tile", "16", "--min-tissue", "0.5"),
    *("--epochs", "1", "--instances-at-once", "4"),
]
"""A small run of `--task mil` on tiles of slides, without `--data` and `--out`."""


PATCHGD = [
    *("--task", "images", "--mode", "patchgd", "--data", drawn_folders.images(20, 10, 10)),
    *("--patch", "16", "--epochs", "2", "--batch-size", "5"),
    *("--latent", "8", "--head-width", "8", "--encoder", "small", "--head", "smaller"),
]
"""A small run of `--task images --mode patchgd` on drawn digits, without `--out`."""

MASKED = [
    *("--task", "patchgd-segmentation", "--patch", "32", "--latent", "8", "--decoder-width", "16"),
    *("--epochs", "1"),
]
"""A small run of `--task patchgd-segmentation`, without `--data` and `--out`."""

FIGURE_DPI, VIEW_SIDE = 30, 64
"""Sizes of figures and views: at the usual ones they take a third of the time of a small run."""

COHORT = {
    "target": "class",
    "stain": "none",
    **dict.fromkeys(["slides", "splits", "folds", "group", "magnification", "mpp_of", "reader"]),
    **dict.fromkeys(["class_names", "test_only", "confine", "mpp", "slide_mpp"]),
    "fold": 0,
    "shares": (70, 10, 20),
    "eval_split": "test",
    "seed": 0,
}
"""Settings of `tfbig.cli.data.cohort`."""


def cohort_settings(table: Path, **changes: Any) -> Namespace:
    """Return settings that read a table of slides."""
    return Namespace(**COHORT | {"data": str(table)} | changes)


def without(flags: list[str], *names: str) -> list[str]:
    """Return flags without some, which have one value each."""
    dropped = {place + k for place, word in enumerate(flags) if word in names for k in (0, 1)}
    return [word for place, word in enumerate(flags) if place not in dropped]


def patchgd(*flags: str) -> list[str]:
    """Return `PATCHGD` with some flags; without its patches in another mode."""
    other = "--mode" in flags and flags[flags.index("--mode") + 1] != "patchgd"
    kept = without(PATCHGD, "--patch") if other else PATCHGD
    return [*kept, *flags]


def run_patchgd(out: Path, *flags: str) -> Any:
    """Train a small run of `--task images`, and return the exit code."""
    return train.main([*patchgd(*flags), "--out", str(out)])


def run_mil(out: Path, *flags: str) -> Any:
    """Train a small run of `--task mil`, and return the exit code."""
    return train.main([*MIL, "--out", str(out), *flags])


def metrics(folder: Path) -> dict[str, Any]:
    """Return the metrics of a run folder."""
    return json.loads((folder / "metrics.json").read_text())


def predictions(folder: Path) -> list[dict[str, str]]:
    """Return the rows of `predictions.csv`."""
    return rows_of(folder / "predictions.csv")


def failures(folder: Path) -> list[dict[str, str]]:
    """Return the rows of `failed.csv`."""
    return rows_of(folder / "failed.csv")


def rows_of(path: Path) -> list[dict[str, str]]:
    """Return the rows of a CSV file."""
    return list(csv.DictReader(path.read_text().splitlines()))


def history(folder: Path) -> list[dict[str, float]]:
    """Return the history of a run, without its times."""
    rows = rows_of(folder / "history.csv")
    return [{k: float(v) for k, v in row.items() if k != "seconds_per_step"} for row in rows]


def write_table(path: Path, rows: list[dict[str, Any]]) -> Path:
    """Write a CSV file, and return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    return path


def write_square(path: Path, side: int = 640, **options: Any) -> Path:
    """Write a bright slide with a purple square in its middle, 0.5 um per pixel."""
    image = np.full((side, side, 3), 240, np.uint8)
    image -= np.random.default_rng(0).integers(0, 5, image.shape, np.uint8)
    image[side // 4 : -side // 4, side // 4 : -side // 4] = (150, 80, 160)
    resolution = {"resolution": (20000, 20000), "resolutionunit": "CENTIMETER"} | options
    tifffile.imwrite(path, image, photometric="rgb", tile=(128, 128), **resolution)
    return path


def write_rectangle(path: Path) -> np.ndarray:
    """Write a bright slide, dark in rows 40 to 200 and columns 100 to 330, 0.5 um per pixel; return its pixels."""
    image = np.random.default_rng(0).integers(236, 246, (300, 420, 3)).astype(np.uint8)
    image[40:200, 100:330] -= 140
    resolution = {"resolution": (20000, 20000), "resolutionunit": "CENTIMETER"}
    tifffile.imwrite(path, image, photometric="rgb", tile=(64, 64), **resolution)
    return image


def write_masked_images(folder: Path, count: int) -> None:
    """Write images of 48 x 48 with a bright square each, and its mask in the folder `masks`."""
    (folder / "masks").mkdir(parents=True)
    rng = np.random.default_rng(count)
    for number in range(count):
        image = rng.integers(0, 90, (48, 48, 3)).astype(np.uint8)
        top, left = rng.integers(0, 24, 2)
        mask = np.zeros((48, 48), np.uint8)
        mask[top : top + 24, left : left + 24] = 255
        image[mask > 0] += 130
        Image.fromarray(image).save(folder / f"{number}.png")
        Image.fromarray(mask).save(folder / "masks" / f"{number}.png")


def write_cohort_slide(path: Path, colour: tuple[int, int, int], side: int = 320) -> None:
    """Write a bright slide with a square of tissue in its middle, 0.5 um per pixel."""
    image = np.full((side, side, 3), 240, np.uint8)
    image[side // 4 : -side // 4, side // 4 : -side // 4] = colour
    image -= np.random.default_rng(len(path.name)).integers(0, 30, image.shape, np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    resolution = {"resolution": (20000, 20000), "resolutionunit": "CENTIMETER"}
    tifffile.imwrite(path, image, photometric="rgb", tile=(128, 128), **resolution)


def write_cohort(folder: Path) -> Path:
    """Write ten slides of two classes, one of them damaged, and a table that names an eleventh; return the table."""
    rows = []
    for number in range(10):
        kind = ("purple", "red")[number % 2]
        path = folder / f"centre {number % 3}" / f"s{number}.tif"
        write_cohort_slide(path, (130, 70, 160) if kind == "purple" else (200, 60, 80))
        split = "train" if number < 6 else "val" if number < 8 else "test"
        rows.append(
            {"case_id": f"c{number}", "slide_id": f"s{number}", "label": kind, "split": split}
        )
    (folder / "centre 1" / "s1.tif").write_bytes(b"II*\0 no slide")
    rows.append({"case_id": "c10", "slide_id": "s10", "label": "red", "split": "train"})
    return write_table(folder / "slides.csv", rows)


def make_cheap(patch: pytest.MonkeyPatch) -> None:
    """Let runs draw small figures and views."""
    patch.setattr(figures, "DPI", FIGURE_DPI)
    patch.setattr(slide_viewer, "SMOOTH_SIDE", VIEW_SIDE)


@contextmanager
def like_a_test() -> Iterator[None]:
    """Do for fixtures of sessions and modules what `tests/conftest.py` does for each test."""
    keras.utils.clear_session(free_memory=False)
    keras.utils.set_random_seed(1)
    keras.config.set_dtype_policy("float32")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(machine_rates, "measure", lambda *_: machine_rates.Rates())
        patch.setattr(machine_rates, "_known", {})
        patch.setattr(machine_rates, "_saved", dict)
        patch.setenv("XDG_CACHE_HOME", os.devnull)
        make_cheap(patch)
        yield


def run_segmentation(data: Path, out: Path, *flags: str) -> Any:
    """Train a small run of `--task segmentation`, and return the exit code."""
    small = without(SEGMENTATION, "--crops") if "whole" in flags else SEGMENTATION
    return train.main(["--data", str(data), "--out", str(out), *small, *flags])


TILE = ["--tile", "64", "--level", "0"]
"""Flags of `tfbig tile` for `write_many`."""


def write_many(folder: Path) -> None:
    """Write six small slides, two of them damaged."""
    for number in range(6):
        path = folder / f"{number}.tif"
        if number in (2, 5):
            path.write_bytes(b"no slide")
        else:
            image = np.full((128, 192, 3), 240, np.uint8)
            image[20:100, 30:150] = np.random.default_rng(number).integers(60, 180, (80, 120, 3))
            tifffile.imwrite(path, image, photometric="rgb", tile=(64, 64))


def tables(folder: Path) -> dict[str, list[str]]:
    """Return the lines of the tables of a folder, sorted."""
    names = [name for name in ("failed.csv", "predictions.csv") if (folder / name).exists()]
    return {name: sorted((folder / name).read_text().splitlines()) for name in names}
