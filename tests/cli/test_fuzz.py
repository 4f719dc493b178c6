"""Damaged files: every one gives a clear error or a result, and none ends the interpreter or leaves half a file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
import tifffile
from samples import ROOT

DATA = ROOT / "tests" / "data"
EXTREMES = [0, 1, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**63]
SECONDS = 20
"""Longest that one file may take; most take milliseconds."""


def seeds(folder: Path) -> list[Path]:
    """One small file of each kind."""
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
    (folder / "unreadable.svs").write_bytes((DATA / "unreadable_tile.svs").read_bytes())
    with h5py.File(folder / "a.h5", "w") as file:
        data = file.create_dataset("coords", data=rng.integers(0, 99, (20, 2)))
        data.attrs.update({"patch_size": 32, "patch_size_level0": 64, "name": "a"})
    (folder / "mpp.csv").write_text("wsi,mpp\n" + "\n".join(f"s{n}.tif,0.{n}5" for n in range(9)))
    (folder / "c.yaml").write_text(
        "size: 256\noverlap: 0\ntissue: otsu\nclasses: [a, b]\nmpp: 0.5\n"
    )
    return sorted(folder.iterdir())


def mutated(data: bytes, rng: np.random.Generator) -> bytes:
    """Some bytes flipped, a word made extreme, a part cut out, doubled, or the end cut off."""
    found = bytearray(data)
    for _ in range(int(rng.integers(1, 6))):
        near = min(len(found), 4096)  # headers are where they can do harm
        place = int(rng.integers(near if rng.random() < 0.7 else len(found)))
        kind = rng.integers(6)
        if kind <= 1:
            found[place] = int(rng.integers(256))
        elif kind == 2:
            size = int(rng.choice([2, 4, 8]))
            word = int(rng.choice(len(EXTREMES)))
            order = "little" if rng.random() < 0.8 else "big"
            value = EXTREMES[word] % 2 ** (8 * size)
            found[place : place + size] = value.to_bytes(size, order)
        elif kind == 3:
            del found[place : place + int(rng.integers(1, 64))]
        elif kind == 4:
            found[place:place] = found[place : place + int(rng.integers(1, 64))]
        else:
            del found[place + 1 :]
        if not found:
            break
    return bytes(found)


def outcome(path: Path) -> str:
    """What comes of a file: 'read', 'refused', or what went wrong."""
    from tfbig import SourceError
    from tfbig.cli import settings
    from tfbig.sources import open_slide, read_coords, read_mpp_table

    try:
        if path.suffix == ".h5":
            coords = read_coords(path)
            assert coords.coords.shape[1] == 2 and coords.size > 0
        elif path.suffix == ".csv":
            assert all(mpp > 0 for mpp in read_mpp_table(path).values())
        elif path.suffix == ".yaml":
            assert isinstance(settings.read_yaml(path), dict)
        else:
            slide = open_slide(path)
            rows, columns = (min(n, 100) for n in slide.shape[:2])
            for level in range(len(slide.levels)):
                source = slide.level(level)
                part = source.read_window(
                    (0, min(rows, source.shape[0])), (0, min(columns, source.shape[1]))
                )
                assert part.dtype == slide.dtype and part.shape[2] == slide.shape[2]
            if slide.dtype == np.uint8 and max(slide.shape[:2]) < 4096:
                slide.thumbnail(64)
    except SourceError as error:
        return "refused" if path.name in str(error) else f"an error without a name: {error}"
    except SystemExit as ended:  # of argparse, for settings
        return "refused" if ended.code == 2 else f"exit {ended.code}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "read"


def run_worker(paths: list[Path]) -> dict[str, str]:
    """Outcomes in a process of its own, so that a crash is seen; it is started again after the file that crashed."""
    found: dict[str, str] = {}
    waiting = list(paths)
    while waiting:
        words = [sys.executable, __file__, *map(str, waiting)]
        done = subprocess.run(
            words,
            env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"},
            capture_output=True,
            text=True,
            timeout=60 + SECONDS * len(waiting),
            check=False,
        )
        lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        for line in lines:
            found |= line
        if len(lines) == len(waiting):
            break
        found[str(waiting[len(lines)])] = (
            f"the interpreter ended with {done.returncode}: {done.stderr[-300:]}"
        )
        waiting = waiting[len(lines) + 1 :]
    return found


def fuzzed(tmp_path: Path, count: int, seed: int) -> dict[str, str]:
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
def test_damaged_files_are_refused_or_read(tmp_path: Path, count: int) -> None:
    found = fuzzed(tmp_path, count, seed=count)
    wrong = {
        Path(path).name: said for path, said in found.items() if said not in ("read", "refused")
    }
    assert len(found) == count
    assert not wrong, json.dumps(wrong, indent=1)
    assert list(found.values()).count("refused") > count / 10
    assert list(found.values()).count("read") > count / 10


if __name__ == "__main__":
    import resource
    import signal

    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import tfbig.sources  # noqa: F401  (before memory is limited)

    def late(*_: object) -> None:
        raise TimeoutError(f"took longer than {SECONDS} s")

    signal.signal(signal.SIGALRM, late)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 2**31, used + 2**31))
    for word in sys.argv[1:]:
        signal.alarm(SECONDS)
        said = outcome(Path(word))
        signal.alarm(0)
        print(json.dumps({word: said}), flush=True)
