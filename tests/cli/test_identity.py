"""Identities of models and files change with what they identify."""

from __future__ import annotations

from pathlib import Path

import keras
from scene_models import small_unet

from tfbig.cli import identity


def test_of_model(tmp_path: Path) -> None:
    small_unet(tmp_path / "m.keras", 2, 2)
    model, same = (keras.saving.load_model(tmp_path / "m.keras") for _ in range(2))
    first = identity.of_model(model)
    assert identity.of_model(same) == first
    model.weights[0].assign(model.weights[0] + 1)
    assert identity.of_model(model) != first


def test_of_file(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    first = identity.of_file(tmp_path / "a")
    assert identity.of_file(tmp_path / "a") == first
    assert first["bytes"] == 3
    (tmp_path / "a").write_bytes(b"abcd")
    assert identity.of_file(tmp_path / "a") != first
