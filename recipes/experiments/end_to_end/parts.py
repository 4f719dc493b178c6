"""What a model sees of a part of the images: pixels, tiles, features of an encoder, or handles of slides."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from recipes.experiments.end_to_end import images, networks, slides
from recipes.experiments.end_to_end.plan import SLIDES, Run, Setting
from tfbig import sources

BATCH, HEAD_BATCH = 8, 32
"""Images in a step, also of features; a step on slides has one."""
SAMPLED = images.TILES // 4
VIEWS_OF_FEATURES = 8
"""Stains of each training image of which a frozen encoder computes features, with augmentation."""

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Part:
    """Part of the images, as a model sees it.

    Args:
        stains: Pixels, tiles or features of the images, `[s, m, ...]`, in s stains, of which the first is their own.
        labels: Their labels, `[m, 1]`.
    """

    stains: Array
    labels: Array


def encoded(run: Run, setting: Setting, folder: Path) -> tuple[keras.Model, float]:
    """Return the encoder of a frozen run, trained once for all runs of its task and seed, and its processor time."""
    task = run.task if run.encoder == "views" else "any"
    path = folder / f"{run.encoder}-{task}-{run.seed}.weights.h5"
    network = networks.encoder()
    if path.exists():
        network.load_weights(path)
        return network, float(path.with_suffix(".json").read_text())
    start = time.process_time()
    if run.encoder == "views":
        train = images.make(run.task, "train", setting.train, run.seed)
        tiles = train.tiles.reshape(-1, *train.tiles.shape[2:])
        mirrored = run.task == "texture"
        network = networks.trained_by_views(tiles, mirrored, setting.pretraining, run.seed)
    elif run.encoder == "pictures":
        network = networks.trained_by_pictures(setting.pretraining, run.seed)
    else:
        network = networks.trained_by_annotations(setting.pretraining, run.seed)
    seconds = time.process_time() - start
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_suffix(".json").write_text(json.dumps(round(seconds, 1)))
    fresh = path.with_name("fresh.weights.h5")
    network.save_weights(fresh)
    fresh.replace(path)
    return network, seconds


def features(network: keras.Model, pixels: images.Images) -> Array:
    """Return the features `[m, 64, 64]` of all tiles of images."""
    flat = pixels.tiles.reshape(-1, images.TILE, images.TILE, 3)
    found = network.predict(flat, batch_size=512, verbose=0)
    return found.reshape(-1, images.TILES, found.shape[-1])


def part_of(run: Run, pixels: images.Images, network: keras.Model | None) -> Part:
    """Return what the model of a run sees of images; with an encoder, their features in one stain, their own."""
    if network is not None:
        return Part(features(network, pixels)[None], pixels.labels)
    return Part((pixels.pixels if run.way == "whole" else pixels.tiles)[None], pixels.labels)


def part_of_slides(run: Run, part: str, number: int) -> Part:
    """Return handles of slides."""
    made, labels = slides.make(part, number, run.seed)
    return Part(slides.handles(made, run.way == "skipped")[None], labels)


def training(run: Run, setting: Setting, network: keras.Model | None) -> Part:
    """Return what a run learns from; if it is frozen and has augmentation, these are features of several stains."""
    if run.task == SLIDES:
        return part_of_slides(run, "train", setting.slides)
    pixels = images.make(run.task, "train", setting.train, run.seed)
    part = part_of(run, pixels, network)
    if network is None or not run.augmented:
        return part
    rng = np.random.default_rng([run.seed, 1])
    stains = [part.stains]
    for _ in range(VIEWS_OF_FEATURES - 1):
        changed = with_pixels(pixels, images.jittered(pixels.pixels, rng))
        stains.append(features(network, changed)[None])
    return Part(np.concatenate(stains), part.labels)


def validation(run: Run, setting: Setting, network: keras.Model | None) -> Part:
    """Return what chooses among runs, and among the weights of a run."""
    if run.task == SLIDES:
        return part_of_slides(run, "validation", setting.slides // 2)
    made = images.make(run.task, "validation", setting.validation, run.seed)
    return part_of(run, made, network)


def tests(run: Run, setting: Setting, network: keras.Model | None) -> dict[str, Part]:
    """Return what tests a run: the test images, and the same in the stain of another laboratory."""
    if run.task == SLIDES:
        return {"test": part_of_slides(run, "test", setting.slides)}
    pixels = images.make(run.task, "test", setting.test, run.seed)
    other = with_pixels(pixels, images.stained(pixels.pixels, images.OTHER_STAIN))
    parts = {"test": pixels, "other_stain": other}
    return {name: part_of(run, each, network) for name, each in parts.items()}


def release(part: Part) -> None:
    """Let the slides of a part go, if these are what it has."""
    if part.stains.dtype.kind == "U":
        for handle in part.stains[0]:
            sources.resolve(str(handle)).release()


def with_pixels(of: images.Images, pixels: Array) -> images.Images:
    """Return images with other pixels."""
    return images.Images(pixels, of.labels, of.marked)


def batch_of(run: Run, part: Part, chosen: Array, rng: np.random.Generator) -> tf.Tensor:
    """Return the inputs of a step: each image in one stain, of a quarter of the tiles or all."""
    x = part.stains[rng.integers(len(part.stains), size=len(chosen)), chosen]
    if run.way == "sampling":
        order = rng.permuted(np.tile(np.arange(images.TILES), (len(x), 1)), axis=1)
        x = np.take_along_axis(x, order[:, :SAMPLED, None, None, None], axis=1)
    if run.augmented and run.way != "frozen":
        x = images.jittered(x, rng)
    return tensor(x)


def tensor(x: Array) -> tf.Tensor:
    """Return pixels or features in float32, and handles as they are."""
    return tf.constant(x if x.dtype.kind == "U" else x.astype("float32"))


def batch_size(run: Run) -> int:
    """Return the number of images in a step."""
    if run.task == SLIDES:
        return 1
    return HEAD_BATCH if run.way == "frozen" else BATCH
