"""Damaged files are read or refused with a clear error; none ends the interpreter."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
import tifffile
from samples import ENVIRONMENT, FILES, PROGRAMS

SECONDS = 20
"""Time limit of a file; most take milliseconds."""

EXTREMES = [0, 1, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**63]


def seeds(folder: Path) -> list[Path]:
    """Write one small file of each kind, and return their paths."""
    rng = np.random.default_rng(0)
    picture = np.repeat(np.repeat(rng.integers(90, 250, (12, 10, 3), np.uint8), 16, 0), 16, 1)
    common = {"photometric": "rgb", "tile": (64, 64)}
    with tifffile.TiffWriter(folder / "pyramid.tif") as writer:
        resolution = {"resolution": (20000, 20000), "resolutionunit": "CENTIMETER"}
        writer.write(picture, compression="jpeg", subifds=1, **common, **resolution)
        writer.write(picture[::2, ::2].copy(), compression="jpeg", subfiletype=1, **common)
    tifffile.imwrite(folder / "big.tif", picture, bigtiff=True, compression="deflate", **common)
    tifffile.imwrite(folder / "plain.ome.tif", picture, photometric="rgb")
    about = "Aperio Image Library v1\r\n160x192 |AppMag = 20|MPP = 0.5"
    tifffile.imwrite(folder / "a.svs", picture, compression="jpeg", description=about, **common)
    np.save(folder / "a.npy", picture)
    (folder / "unreadable.svs").write_bytes((FILES / "unreadable_tile.svs").read_bytes())
    with h5py.File(folder / "a.h5", "w") as file:
        data = file.create_dataset("coords", data=rng.integers(0, 99, (20, 2)))
        data.attrs.update({"patch_size": 32, "patch_size_level0": 64, "name": "a"})
    (folder / "mpp.csv").write_text("wsi,mpp\n" + "\n".join(f"s{n}.tif,0.{n}5" for n in range(9)))
    (folder / "c.yaml").write_text(
        "size: 256\noverlap: 0\ntissue: otsu\nclasses: [a, b]\nmpp: 0.5\n"
    )
    return sorted(folder.iterdir())


def mutated(data: bytes, rng: np.random.Generator) -> bytes:
    """Return the bytes with some changed, a word made extreme, a part removed or doubled, or the end cut off."""
    changed = bytearray(data)
    for _ in range(int(rng.integers(1, 6))):
        near = min(len(changed), 4096)  # headers are the most vulnerable part
        place = int(rng.integers(near if rng.random() < 0.7 else len(changed)))
        kind = rng.integers(6)
        if kind <= 1:
            changed[place] = int(rng.integers(256))
        elif kind == 2:
            size = int(rng.choice([2, 4, 8]))
            word = int(rng.choice(len(EXTREMES)))
            order = "little" if rng.random() < 0.8 else "big"
            value = EXTREMES[word] % 2 ** (8 * size)
            changed[place : place + size] = value.to_bytes(size, order)
        elif kind == 3:
            del changed[place : place + int(rng.integers(1, 64))]
        elif kind == 4:
            changed[place:place] = changed[place : place + int(rng.integers(1, 64))]
        else:
            del changed[place + 1 :]
        if not changed:
            break
    return bytes(changed)


def run_worker(paths: list[Path]) -> dict[str, str]:
    """Read files in a separate process, which is restarted after a file that crashes it; return the outcomes."""
    outcomes: dict[str, str] = {}
    waiting = list(paths)
    while waiting:
        words = [
            sys.executable,
            str(PROGRAMS / "damaged_files.py"),
            str(SECONDS),
            *map(str, waiting),
        ]
        done = subprocess.run(
            words,
            env=ENVIRONMENT,
            capture_output=True,
            text=True,
            timeout=60 + SECONDS * len(waiting),
            check=False,
        )
        lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        for line in lines:
            outcomes |= line
        if len(lines) == len(waiting):
            break
        outcomes[str(waiting[len(lines)])] = (
            f"the interpreter ended with {done.returncode}: {done.stderr[-300:]}"
        )
        waiting = waiting[len(lines) + 1 :]
    return outcomes


def fuzzed(tmp_path: Path, count: int, seed: int) -> dict[str, str]:
    """Read `count` damaged files, and return the outcomes."""
    (tmp_path / "seeds").mkdir()
    (tmp_path / "files").mkdir()
    kinds = seeds(tmp_path / "seeds")
    rng = np.random.default_rng(seed)
    paths = []
    for number in range(count):
        origin = kinds[number % len(kinds)]
        path = tmp_path / "files" / f"{number:04}-{origin.name}"
        path.write_bytes(mutated(origin.read_bytes(), rng))
        paths.append(path)
    return run_worker(paths)


@pytest.mark.parametrize("count", [60, pytest.param(2000, marks=pytest.mark.slow)])
def test_damaged_files(tmp_path: Path, count: int) -> None:
    outcomes = fuzzed(tmp_path, count, seed=count)
    wrong = {
        Path(path).name: outcome
        for path, outcome in outcomes.items()
        if outcome not in ("read", "refused")
    }
    assert len(outcomes) == count
    assert not wrong, json.dumps(wrong, indent=1)
    assert list(outcomes.values()).count("refused") > count / 10
    assert list(outcomes.values()).count("read") > count / 10
