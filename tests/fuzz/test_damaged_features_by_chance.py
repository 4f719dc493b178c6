"""Damaged features, weights, models, settings and tables are read or refused in one line, in 2 GB and 20 s."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import h5py
import keras
import mutations
import numpy as np
import pytest
import torch_saved
from damaged_workers import damage_seeds, run_worker
from safetensors.numpy import save_file

COUNT = 200
"""Damaged copies of each file."""


def write_seeds(folder: Path) -> list[Path]:
    """Write one small file of each kind, and return their paths; the last word of a name is the kind."""
    rng = np.random.default_rng(0)
    rows = rng.random((20, 8), np.float32)
    state = {"a.weight": rows, "a.bias": rows[0]}
    torch_saved.features(folder / "t-bag.pt", rows)
    _write_bag(folder / "h-bag.h5", rows)
    np.savez(folder / "n-weights.npz", **state)
    np.savez_compressed(folder / "z-weights.npz", **state)
    save_file(state, folder / "s-weights.safetensors")
    stored = {key: torch_saved.tensor(array.copy(), key) for key, array in state.items()}
    torch_saved.write(folder / "p-weights.pth", {"state_dict": stored}, state)
    with h5py.File(folder / "w-weights.h5", "w") as file:
        for number, array in enumerate(state.values()):
            file[f"layers/dense/vars/{number}"] = array
    image = keras.Input((None, None, 3))
    keras.Model(image, keras.layers.Conv2D(2, 3)(image)).save(folder / "k-model.keras")
    settings = "size: 256\ntissue: otsu\nclasses: [a, b]\nmpp: 0.5\ndate: 2024-01-02\nnested: {a: {b: yes}}\n"
    (folder / "c-settings.yaml").write_text(settings)
    lines = "".join(f"s{n},{n % 2},train,c{n}\n" for n in range(9))
    (folder / "t-table.csv").write_text(f"slide_id,label,split,case_id\n{lines}")
    return sorted(folder.iterdir())


def _write_bag(path: Path, rows: np.ndarray) -> None:
    options: dict[str, Any] = {"chunks": (4, 8), "compression": "gzip"}
    with h5py.File(path, "w") as file:
        file.create_dataset("features", data=rows, **options)
        file["coords"] = np.arange(40).reshape(20, 2)
        file["coords"].attrs.update({"patch_size": 32, "patch_size_level0": 64, "name": "a"})


@pytest.mark.slow
@pytest.mark.parametrize("seed", damage_seeds(0, 1, 2))
def test_damaged_features(tmp_path: Path, seed: int) -> None:
    (tmp_path / "seeds").mkdir()
    (tmp_path / "files").mkdir()
    rng, paths = np.random.default_rng(seed), []
    for whole in write_seeds(tmp_path / "seeds"):
        for number in range(COUNT):
            paths.append(tmp_path / "files" / f"{number:03}-{whole.name}")
            mutations.damaged(whole, paths[-1], rng)
    outcomes = run_worker("damaged_features.py", paths)
    wrong = {
        Path(path).name: outcome
        for path, outcome in outcomes.items()
        if outcome not in ("read", "refused")
    }
    assert len(outcomes) == len(paths)
    assert not wrong, json.dumps(wrong, indent=1)
    assert list(outcomes.values()).count("refused") > len(paths) / 10
    assert list(outcomes.values()).count("read") > len(paths) / 20
