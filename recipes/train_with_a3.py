"""Train on images with the augmentation and the loss of A3, for the recipe `patchgd-imagenet100-as-published`.

    tfbig dataset imagenet-100 FOLDER --out tables/imagenet-100
    python -m tfbig.recipes.train_with_a3 --config recipes/patchgd-imagenet100-as-published.yaml --data TABLES

TABLES is `tables/imagenet-100`. The flags are those of `tfbig train --task images`, and `tfbig evaluate` and
`tfbig predict` read the run. Training images are crops of random size of the whole images, changed by RandAugment, and
mixed by mixup and cutmix, as in Wightman et al. (2021). The loss takes every class as a yes or no of its own, and the
training images of a step are in memory.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfbig import SourceError, sources
from tfbig.cli.data.images import ImageSet
from tfbig.cli.data.run_data import Data
from tfbig.cli.settings.tasks import ImageSettings
from tfbig.cli.tasks.images import ImageTask
from tfbig.cli.tasks.target import Target
from tfbig.data import epochs
from tfbig.data.worker_shards import ALL_BATCHES, Shard
from tfbig.recipes import a3, own_tasks
from tfbig.system import callbacks


class A3Images(ImageTask):
    """Images that are augmented as in A3; labels are shares of classes `[classes]`."""

    def resolved(self, settings: ImageSettings) -> ImageSettings:
        """Fill in defaults, and refuse flags that cannot be combined with A3.

        Raises:
            SourceError: A flag cannot be combined with A3.
        """
        for name in ("augment", "stain_jitter", "class_weights"):
            if getattr(settings, name):
                raise SourceError(f"--{name.replace('_', '-')}: A3 augments and mixes. Remove it.")
        if settings.monitor == "qwk" or settings.target != "class":
            raise SourceError(
                "A3 mixes images of classes; use --target class, and no --monitor qwk."
            )
        return super().resolved(settings)

    def loss(self, settings: ImageSettings, target: Target) -> tuple[Any, Any]:
        """Return the loss of shares of classes, and its weight."""
        _, weights = super().loss(settings, target)
        return keras.losses.BinaryCrossentropy(from_logits=True), weights

    def metrics(self, settings: ImageSettings, target: Target, data: Data) -> list[Any]:
        """Metrics of shares of classes."""
        return [keras.metrics.CategoricalAccuracy(name="accuracy")]

    def batches(
        self,
        settings: ImageSettings,
        data: Data,
        part: ImageSet,
        shard: Shard = ALL_BATCHES,
        learns: bool = False,
        weights: Any = None,
    ) -> tf.data.Dataset:
        """The images of a split and their shares of classes."""
        classes = len(data.classes)
        if learns:
            return augmented(part, settings, classes, shard)
        whole = super().batches(settings, data, part, shard)
        return whole.map(lambda x, y: (x, tf.one_hot(y, classes)))


def augmented(
    part: ImageSet, settings: ImageSettings, classes: int, shard: Shard = ALL_BATCHES
) -> tf.data.Dataset:
    """The training images of an epoch, augmented and mixed.

    Args:
        part: The training images.
        settings: Settings of the run.
        classes: Number of classes.
        shard: Batches of this worker, and the epoch to start with.
    """

    def item(number: int, drawn: Any) -> tuple[Any, Any, Any]:
        return part.images[number].handle, part.labels[number], drawn

    number, name = tf.TensorSpec([], tf.int64), tf.TensorSpec([], tf.string)
    label = tf.TensorSpec(part.labels.shape[1:], part.labels.dtype)
    data = epochs.dataset(
        item,
        len(part.images),
        settings.batch_size,
        (name, label, number),
        seed=settings.seed,
        shuffle=True,
        sizes=[float(np.prod(i.shape)) for i in part.images] if settings.like_sizes else None,
        shard=replace(shard, first=0),  # mixing draws numbers batch after batch
    )
    data = data.map(partial(_changed, part.images[0].shape)).batch(settings.batch_size)
    drawn = np.random.default_rng([settings.seed, shard.epoch, 1, shard.own.start])
    data = data.map(_mixed(classes, int(drawn.integers(2**31))))
    return data.skip(shard.first // shard.replicas * len(shard.own)).prefetch(1)


def _changed(shape: tuple[int, ...], handle: Any, label: Any, seed: Any) -> tuple[Any, Any]:
    """Read an image of `shape` as a tensor, augmented from the whole image, with its label."""

    def read(name: bytes, seed: int) -> Any:
        image: Any = sources.resolve(name.decode())
        whole = image.whole if isinstance(image, sources.CenterCropped) else image
        return a3.augment(whole, (shape[0], shape[1]), int(seed))

    image = callbacks.numpy_function(read, [handle, seed], tf.uint8)
    return tf.ensure_shape(image, shape), label


def _mixed(classes: int, seed: int) -> Any:
    """Mix the images of a batch by mixup 0.1 or by cutmix 1.0, each with probability 1/2."""
    mixup, cutmix = keras.layers.MixUp(0.1, seed=seed), keras.layers.CutMix(1.0, seed=seed)

    def mixed(x: Any, y: Any) -> tuple[Any, Any]:
        batch = {"images": tf.cast(x, tf.float32), "labels": tf.one_hot(y, classes)}
        either = tf.random.uniform([], seed=seed) < 0.5
        batch = tf.cond(either, lambda: mixup(batch), lambda: cutmix(batch))
        return batch["images"], batch["labels"]

    return mixed


def main(argv: Sequence[str] | None = None) -> int:
    """Train, and return the exit code; 3 if images were skipped."""
    return own_tasks.train_with("images", A3Images, argv)


if __name__ == "__main__":
    sys.exit(main())
