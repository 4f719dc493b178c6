"""Encoder of tiles of slides: the network of `tfbig features`, fed by threads that read ahead."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tfbig import SourceError
from tfbig.cli.data.encoder_tiles import prepared, size_of
from tfbig.cli.paths import FlagError
from tfbig.cli.settings.feature_settings import FeaturesSettings
from tfbig.cli.tasks import encoder_weights
from tfbig.models import encoders
from tfbig.sources import Bag

READER_THREADS = 4
"""Threads that read and decode tiles."""
SEED = 0
"""Seed of random weights, so that all shards have the same."""


class TileEncoder:
    """Network from tiles to features, with the weights, the scale of pixels and the precision of the settings.

    Attributes:
        width: Number of features of a tile.
        size: Rows and columns of the tiles that the network accepts, or None for any.

    Raises:
        SourceError: The weights cannot be read, or belong to another network.
    """

    def __init__(self, settings: FeaturesSettings) -> None:
        keras.config.set_dtype_policy(settings.precision)
        keras.utils.set_random_seed(SEED)
        self._name, self.size = settings.encoder, size_of(settings.encoder)
        self.model = encoders.make(
            settings.encoder, (self.size, self.size, 3), mean=settings.mean, std=settings.std
        )
        if settings.encoder_weights is None:
            encoder_weights.warn_of_random(settings.encoder)
        else:
            encoder_weights.load_file(self.model, settings.encoder, settings.encoder_weights)
        self.width = int(self.model.output_shape[-1])
        self._at_once = settings.batch_size
        tiles = tf.TensorSpec([None, self.size, self.size, 3], tf.uint8)
        self._encode = tf.function(self._features, input_signature=[tiles])

    def _features(self, tiles: Any) -> Any:
        return tf.cast(self.model(tf.cast(tiles, tf.float32), training=False), tf.float32)

    def encode(self, tiles: Bag) -> Iterator[tuple[int, npt.NDArray[np.float32]]]:
        """Yield the features of a bag, some tiles at a time, as `(number of the first tile, features [k, width])`.

        `tiles` are `[n, H, W, 3]` of uint8, resized and cut by `prepared`.

        Raises:
            SourceError: A tile cannot be read.
        """
        tiles = prepared(tiles, self._name)
        for start, batch in _read_ahead(tiles, self._at_once):
            yield start, self._encode(tf.constant(batch)).numpy()


def _read_ahead(tiles: Bag, at_once: int) -> Iterator[tuple[int, npt.NDArray[Any]]]:
    """Yield batches of a bag in order, while threads read the next ones."""
    count = tiles.shape[0]
    starts = iter(range(0, count, at_once))
    with ThreadPoolExecutor(READER_THREADS, "tfbig-tiles") as pool:

        def ahead(start: int) -> tuple[int, Any]:
            return start, pool.submit(tiles.read, start, min(start + at_once, count))

        waiting = deque(map(ahead, islice(starts, READER_THREADS)))
        while waiting:
            start, batch = waiting.popleft()
            read = batch.result()
            waiting.extend(map(ahead, islice(starts, 1)))
            yield start, read


def checksum(settings: FeaturesSettings) -> str | None:
    """The SHA-256 of the file of `--encoder-weights`, or None without.

    Raises:
        SourceError: The file cannot be read, or has another SHA-256 than `--weights-sha256`.
    """
    weights, expected = settings.encoder_weights, settings.weights_sha256
    if weights is None:
        if expected is not None:
            raise FlagError(f"--weights-sha256 {expected}: needs --encoder-weights.")
        return None
    path = encoder_weights.file_of(settings.encoder, weights)
    found = _sha256(path, weights)
    if expected not in (None, found):
        raise SourceError(
            f"--encoder-weights {weights}: has SHA-256 {found}; expected {expected} (--weights-sha256). Use the "
            "weights of the other features, or another --out without --weights-sha256."
        )
    return found


def _sha256(path: Path, weights: str) -> str:
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while block := file.read(2**24):
                digest.update(block)
    except OSError as error:
        raise SourceError(
            f"--encoder-weights {weights}: {path} cannot be read: {error.strerror}."
        ) from error
    return digest.hexdigest()
