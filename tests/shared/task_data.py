"""Small data of each task, and the flags of a small run on it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tifffile
from cli_runs import write_masked_images
from PIL import Image
from samples import write_slide
from scene_files import write_scene
from volume_sets import nnunet


class TaskData(NamedTuple):
    """Data of a task.

    Attributes:
        data: Value of `--data`.
        flags: Flags of a small run of one epoch, without `--task` and `--data`.
        new: What a trained model predicts.
    """

    data: Path
    flags: tuple[str, ...]
    new: Path


def scenes(folder: Path) -> TaskData:
    """Scenes of two classes, bright and dark."""
    lines = ["scene,label,split"]
    for n, split in enumerate(("train", "val", "test")):
        bright = np.indices((48, 64)).sum(0) // 9 % 2
        noise = np.random.default_rng(n).integers(-50, 50, (48, 64, 3))
        write_scene(
            folder / f"s{n}.tif", (1000 + 1000 * bright[..., None] + noise).astype("uint16")
        )
        write_scene(folder / f"label{n}.tif", bright.astype("uint8"))
        lines.append(f"s{n}.tif,label{n}.tif,{split}")
    (folder / "scenes.csv").write_text("\n".join(lines))
    flags = ("--filters", "4", "--depth", "1", "--crop", "32x32", "--crops", "4")
    return TaskData(folder / "scenes.csv", flags, folder / "s2.tif")


def volumes(folder: Path) -> TaskData:
    """Volumes in the layout of nnU-Net."""
    nnunet(folder / "set")
    return TaskData(
        folder / "set", ("--crop", "whole", "--stage-filters", "2", "4"), folder / "set/imagesTs"
    )


def discs(folder: Path) -> TaskData:
    """Bright discs on dark ground, with their numbers."""
    (folder / "masks").mkdir()
    rows, columns = np.mgrid[:64, :64]
    for number in range(6):
        rng = np.random.default_rng(number)
        labels = np.zeros((64, 64), np.uint16)
        for disc in range(1, 5):
            y, x = rng.uniform(8, 56, 2)
            labels[np.hypot(rows - y, columns - x) < 6] = disc
        image = 30 + 150 * (labels > 0) + rng.integers(0, 9, labels.shape)
        tifffile.imwrite(folder / f"{number}.tif", image.astype(np.uint8))
        tifffile.imwrite(folder / f"masks/{number}.tif", labels)
    flags = ("--crop", "32x32", "--filters", "4", "--depth", "1", "--crops", "4")
    return TaskData(folder, flags, folder / "0.tif")


def masked(folder: Path) -> TaskData:
    """Images with a bright square each, and its mask."""
    write_masked_images(folder / "set", 6)
    flags = ("--patch", "32", "--latent", "8", "--decoder-width", "16")
    return TaskData(folder / "set", flags, folder / "set" / "0.png")


def slides(folder: Path) -> TaskData:
    """Slides with tissue."""
    for name in "abc":
        write_slide(folder / f"{name}.tif", ord(name))
    return TaskData(folder, ("--crop", "128x256", "--crops", "2"), folder / "a.tif")


def pictures(folder: Path) -> TaskData:
    """Red and green images."""
    lines = ["image,label,split"]
    for n in range(12):
        pixels = np.random.default_rng(n).integers(0, 80, (32, 32, 3)).astype(np.uint8)
        pixels[..., n % 2] += 100
        Image.fromarray(pixels).save(folder / f"{n}.png")
        lines.append(f"{n}.png,{'xy'[n % 2]},{('train', 'val', 'test')[n // 2 % 3]}")
    (folder / "images.csv").write_text("\n".join(lines))
    flags = ("--mode", "patchgd", "--patch", "16", "--latent", "8", "--head-width", "8")
    others = ("--encoder", "small", "--head", "smaller", "--batch-size", "2")
    return TaskData(folder, (*flags, *others), folder / "0.png")


def cohort(folder: Path) -> TaskData:
    """Slides with a label each, of tiles."""
    lines = ["slide_id,label,split"]
    for n in range(6):
        write_slide(folder / f"s{n}.tif", n)
        lines.append(f"s{n},{'xy'[n % 2]},{('train', 'val', 'test')[n // 2 % 3]}")
    (folder / "slides.csv").write_text("\n".join(lines))
    flags = ("--level", "0", "--tile", "32", "--min-tissue", "0.5", "--instances-at-once", "4")
    return TaskData(folder, flags, folder / "s0.tif")


DATA: dict[str, Callable[[Path], TaskData]] = {
    "segmentation": slides,
    "mil": cohort,
    "images": pictures,
    "patchgd-segmentation": masked,
    "volume-segmentation": volumes,
    "scenes": scenes,
    "instances": discs,
}
"""Functions that write the data of each task into an empty folder."""
