"""Batches of tiles that threads read ahead, and the checksum of weights."""

from __future__ import annotations

import hashlib
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tfbig import SourceError
from tfbig.cli import tile_encoder
from tfbig.cli.settings.feature_settings import FeaturesSettings
from tfbig.sources import ArrayBag, Bag

TILES = np.random.default_rng(0).integers(0, 256, (11, 32, 32, 3), np.uint8)


class Watched(Bag):
    """Tiles that note which thread read them; one of them may be damaged."""

    def __init__(self, damaged: int | None = None) -> None:
        super().__init__(TILES.shape, TILES.dtype, "watched")
        self.threads: set[str] = set()
        self.reads: list[int] = []
        self.damaged = damaged

    def _read(self, start: int, stop: int) -> np.ndarray:
        self.threads.add(threading.current_thread().name)
        self.reads.append(start)
        if self.damaged is not None and start <= self.damaged < stop:
            raise SourceError(f"tile {self.damaged} is damaged")
        return TILES[start:stop]


@pytest.mark.parametrize("at_once", [1, 4, 11, 50])
def test_batches_are_in_order(at_once: int) -> None:
    bag = Watched()
    starts, batches = zip(*tile_encoder._read_ahead(bag, at_once), strict=True)
    assert list(starts) == list(range(0, 11, at_once))
    np.testing.assert_array_equal(np.concatenate(batches), TILES)
    assert all(name.startswith("tfbig-tiles") for name in bag.threads)


def test_few_batches_are_read_ahead() -> None:
    """Memory is that of some batches, however many tiles a slide has."""
    bag = Watched()
    batches = tile_encoder._read_ahead(bag, 1)
    next(batches)
    assert max(bag.reads) <= tile_encoder.READER_THREADS
    batches.close()


def test_errors_of_tiles_come_out() -> None:
    with pytest.raises(SourceError, match="tile 7 is damaged"):
        list(tile_encoder._read_ahead(Watched(damaged=7), 2))


def settings(**changes: Any) -> FeaturesSettings:
    values = {"encoder": "resnet18", "mean": 0.0, "std": 1.0, "batch_size": 4}
    return FeaturesSettings(**values | changes)


@pytest.mark.slow
def test_batches_do_not_change_features(capsys: pytest.CaptureFixture[str]) -> None:
    """The last batch is smaller; random weights are the same in every process."""
    encoder = tile_encoder.TileEncoder(settings())
    assert "the weights of resnet18 are random" in capsys.readouterr().err
    parts = [features for _, features in encoder.encode(ArrayBag(TILES))]
    assert [part.shape for part in parts] == [(4, 512), (4, 512), (3, 512)]
    whole = encoder.model(TILES.astype("float32"), training=False)
    np.testing.assert_allclose(np.concatenate(parts), whole, rtol=1e-4, atol=1e-5)
    again = tile_encoder.TileEncoder(settings())
    first = next(again.encode(ArrayBag(TILES)))[1]
    np.testing.assert_array_equal(first, parts[0])


def test_checksum(tmp_path: Path) -> None:
    """The checksum is that of a file, or of the model of a run."""
    (tmp_path / "model.keras").write_bytes(b"weights")
    digest = hashlib.sha256(b"weights").hexdigest()
    for weights in (tmp_path, tmp_path / "model.keras"):
        given = settings(encoder_weights=str(weights), weights_sha256=digest)
        assert tile_encoder.checksum(given) == digest
    assert tile_encoder.checksum(settings()) is None
    other = settings(encoder_weights=str(tmp_path), weights_sha256="0" * 64)
    with pytest.raises(SourceError, match=f"has SHA-256 {digest}; expected 0000"):
        tile_encoder.checksum(other)
    with pytest.raises(SourceError, match="cannot be read: No such file"):
        tile_encoder.checksum(settings(encoder_weights=str(tmp_path / "none.npz")))
