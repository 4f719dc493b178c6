"""`tfbig features`: files as TRIDENT writes them, a table to train on, and runs that were interrupted."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import h5py
import keras
import numpy as np
import pytest
from cli_runs import failures, metrics, predictions, rows_of, write_cohort_slide, write_square
from safetensors.numpy import save_file
from samples import ROOT

from tfbig import sources
from tfbig.cli import tile_encoder
from tfbig.cli.main import main
from tfbig.models import encoders, pathology_encoders, pretrained
from tfbig.models.pathology_encoders import PATHOLOGY_ENCODERS, PathologyEncoder
from tfbig.models.vision_transformer import ViT
from tfbig.sources import read_coords
from tfbig.system import output_folder

TINY = PathologyEncoder(
    "laboratory/tiny",
    "none",
    ViT(patch=8, width=16, depth=1, heads=2),
    0,
    size=32,
    mpp=1.0,
    mean=(0.7, 0.6, 0.7),
    std=(0.2, 0.2, 0.2),
)
RESNET = ("--encoder", "resnet18", "--tile", "32", "--mpp", "1")
"""Flags of a network that needs no weights."""


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let UNI be a small vision transformer for tiles of 32 at 1 micrometre per pixel."""
    monkeypatch.setitem(PATHOLOGY_ENCODERS, "uni", TINY)


@pytest.fixture
def weights(tiny: None, tmp_path: Path) -> Path:
    """Weights of it in a file, with the names of timm."""
    keras.utils.set_random_seed(7)
    network = pathology_encoders.network("uni", (32, 32, 3))
    arrays = {}
    for key, (variable, order) in pretrained._torch_variables(network).items():
        value = np.asarray(variable.value)
        arrays[key] = np.ascontiguousarray(value.transpose(np.argsort(order)))
    save_file(arrays, tmp_path / "model.safetensors")
    return tmp_path / "model.safetensors"


def features_of(path: Path) -> tuple[np.ndarray, np.ndarray, dict[str, Any], dict[str, Any]]:
    """Return features and coordinates of a file, and the attributes of both."""
    with h5py.File(path) as file:
        features, coords = file["features"], file["coords"]
        return features[:], coords[:], dict(features.attrs), dict(coords.attrs)


def test_files_of_trident(slides: Path, weights: Path, tmp_path: Path, capsys) -> None:
    """Tile size, resolution and scale are those of the encoder, and features those of the network itself."""
    out = tmp_path / "out"
    flags = ("--encoder", "uni", "--encoder-weights", str(weights), "--batch-size", "7")
    assert main(["features", str(slides), *flags, "--min-tissue", "1", "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert "a.tif: 16 tiles, 16 features each" in printed
    assert f"{out / 'features.csv'}: 2 slides, 32 tiles, " in printed
    features, coords, about, of_coords = features_of(out / "a.h5")
    assert (features.shape, features.dtype, coords.shape) == ((16, 16), np.float32, (16, 2))
    assert about["encoder"] == "uni"
    assert about["name"] == "a"
    assert about["savetodir"] == str(out)
    assert about["tfbig_mpp"] == pytest.approx(1.0)
    assert about["tfbig_weights"] == "model.safetensors"
    assert about["tfbig_weights_sha256"] == hashlib.sha256(weights.read_bytes()).hexdigest()
    assert of_coords["patch_size"] == 32
    assert of_coords["patch_size_level0"] == 64
    assert of_coords["overlap"] == 0
    assert of_coords["level0_magnification"] == pytest.approx(20)
    assert of_coords["target_magnification"] == pytest.approx(10)
    assert read_coords(out / "a.h5").made_with == {"mpp": 1.0, "min_tissue": 1.0}
    network = pathology_encoders.build("uni")
    pretrained.load(network, weights)
    slide = sources.open_slide(slides / "a.tif")
    tiles = read_coords(out / "a.h5").tiles(slide)
    expected = network(tiles.read(0, 16).astype("float32"))
    np.testing.assert_allclose(features, expected, rtol=1e-4, atol=1e-5)


def test_finished_slides_and_other_settings(slides: Path, weights: Path, tmp_path: Path, capsys):
    out, other = tmp_path / "out", tmp_path / "other.safetensors"
    command = ["features", str(slides), "--encoder", "uni", "--out", str(out), "--encoder-weights"]
    assert main([*command, str(weights)]) == 0
    stamps = {p.name: p.stat().st_mtime_ns for p in out.iterdir()}
    moved = weights.rename(tmp_path / "moved.safetensors")
    capsys.readouterr()
    assert main([*command, str(moved), "--batch-size", "3"]) == 0
    assert "2 of 2 slides are already finished" in capsys.readouterr().out
    assert {p.name: p.stat().st_mtime_ns for p in out.iterdir()} == stamps
    other.write_bytes(moved.read_bytes()[:-4] + b"\0\0\0\0")
    for flags, names in (
        ([str(other)], "weights_sha256"),
        ([str(moved), "--overlap", "8", "--precision", "mixed_bfloat16"], "precision, overlap"),
    ):
        assert main([*command, *flags]) == 1
        error = capsys.readouterr().err
        assert f"{out}: holds results of other settings: {names}. Use another --out" in error
        assert error.count("\n") == 1
    config = ["--config", str(out / "features.yaml"), "--encoder-weights", str(other)]
    assert main(["features", str(slides), *config, "--out", str(tmp_path / "again")]) == 1
    assert "has SHA-256 " in capsys.readouterr().err


def test_interrupted_slides(slides: Path, tiny: None, tmp_path: Path, capsys) -> None:
    """A killed process leaves a part of a file, or a whole file without its row in the table."""
    out = tmp_path / "out"
    command = ["features", str(slides), "--encoder", "uni", "--out", str(out)]
    assert main(command) == 0
    assert "the weights of uni are random" in capsys.readouterr().err
    table = sorted((out / "features.csv").read_text().splitlines())
    expected, stamp = features_of(out / "b.h5")[0], (out / "a.h5").stat().st_mtime_ns
    (out / "features.csv").unlink()
    killed = output_folder.part_of(out / "b.h5")
    killed = killed.with_name(killed.name.replace(f"-{os.getpid()}-", "-999999999-"))
    (out / "b.h5").rename(killed)
    assert main(command) == 0
    np.testing.assert_array_equal(features_of(out / "b.h5")[0], expected)
    assert (out / "a.h5").stat().st_mtime_ns == stamp
    again = sorted((out / "features.csv").read_text().splitlines())
    assert [line.rpartition(",")[0] for line in again] == [
        line.rpartition(",")[0] for line in table
    ]
    assert not killed.exists()


@pytest.mark.slow
def test_killed_process(tmp_path: Path) -> None:
    """A process that is killed within a slide, and started again, writes what an uninterrupted one writes."""
    (tmp_path / "slides").mkdir()
    for name in "abc":
        write_square(tmp_path / "slides" / f"{name}.tif")
    flags = [*RESNET, "--tissue", "none", "--batch-size", "1"]
    whole, out = tmp_path / "whole", tmp_path / "out"
    command = [sys.executable, "-m", "tfbig_command", "features", str(tmp_path / "slides"), *flags]

    def start(folder: Path) -> subprocess.Popen[bytes]:
        return subprocess.Popen([*command, "--out", str(folder)], cwd=ROOT)

    with start(whole) as running:
        assert running.wait() == 0
    running, end = start(out), time.monotonic() + 300
    while not list(out.glob(".part-*-b.h5")):
        assert time.monotonic() < end
        time.sleep(0.002)
    running.kill()
    assert running.wait() == -9
    assert (out / "a.h5").exists()
    assert not (out / "b.h5").exists()
    stamp = (out / "a.h5").stat().st_mtime_ns
    with start(out) as running:
        assert running.wait() == 0
    assert (out / "a.h5").stat().st_mtime_ns == stamp
    for name in "abc":
        np.testing.assert_array_equal(*(features_of(f / f"{name}.h5")[0] for f in (whole, out)))
    assert [row["slide_id"] for row in rows_of(out / "features.csv")] == ["a", "b", "c"]


@pytest.mark.slow
def test_features_then_training(cohort_table: Path, tiny: None, tmp_path: Path, capsys) -> None:
    """The two commands of the guide; the damaged and the missing slide are named, and left out."""
    features, run = tmp_path / "features", tmp_path / "run"
    command = ["features", str(cohort_table), "--encoder", "uni", "--out", str(features)]
    assert main(command) == 3
    assert "2 of 11 slides failed" in capsys.readouterr().err
    assert [Path(row["item"]).name for row in failures(features)] == ["s1.tif", "s10"]
    rows = rows_of(features / "features.csv")
    assert [row["slide_id"] for row in rows] == ["s0", *(f"s{n}" for n in range(2, 10))]
    columns = ["slide_id", "case_id", "label", "split", "path", "tiles", "width", "seconds"]
    assert list(rows[0]) == columns
    command = ["train", "--task", "mil", "--bags", "features", "--data", str(features)]
    assert main([*command, "--epochs", "1", "--out", str(run)]) == 0
    assert len(predictions(run)) == 2
    assert metrics(run)["left_out"] == []
    capsys.readouterr()
    command = ["evaluate", str(run), "--data", str(features / "features.csv"), "--eval-split"]
    assert main([*command, "all", "--out", str(tmp_path / "evaluation")]) == 0


@pytest.mark.slow
def test_shards_and_coords(cohort_table: Path, tiles: Path, tiny: None, tmp_path: Path) -> None:
    """Shards of one folder encode the tiles of `tfbig tile`, which are resized to those of the encoder."""
    out = tmp_path / "out"
    flags = ("--encoder", "uni", "--coords", str(tiles), "--out", str(out))
    codes = [
        main(["features", str(cohort_table), *flags, "--shard", f"{shard}/2"]) for shard in (0, 1)
    ]
    assert codes == [3, 3]  # 3 if a slide of any shard failed
    assert main(["features", str(cohort_table), *flags[:2], *flags[4:]]) == 1  # other tiles
    assert len(rows_of(out / "features.csv")) == 9
    features, coords, about, of_coords = features_of(out / "s0.h5")
    expected = read_coords(tiles / "s0.h5")
    np.testing.assert_array_equal(coords, expected.coords)
    assert (of_coords["patch_size"], about["tfbig_encoder_size"]) == (16, 32)
    slide = sources.open_slide(next(cohort_table.parent.rglob("s0.tif")))
    keras.utils.set_random_seed(tile_encoder.SEED)
    network = encoders.make("uni", (32, 32, 3))
    resized = sources.Resized(expected.tiles(slide), (32, 32))
    np.testing.assert_allclose(
        features, network(resized.read(0, len(coords)).astype("float32")), rtol=1e-4, atol=1e-5
    )


@pytest.mark.slow
def test_coords_of_other_tiles(cohort_table: Path, tiles: Path, tiny: None, tmp_path: Path) -> None:
    flags = ("--encoder", "uni", "--coords", str(tiles), "--tile", "20")
    slide = str(next(cohort_table.parent.rglob("s0.tif")))
    assert main(["features", slide, *flags, "--out", str(tmp_path / "out")]) == 3
    assert "holds tiles of 16 pixels, but tiles of 20" in failures(tmp_path / "out")[0]["reason"]


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["mixed_bfloat16", "mixed_float16"])
def test_precision(precision: str, tiny: None, tmp_path: Path) -> None:
    """Features in half precision are those in float32 up to rounding, and are stored in float32."""
    write_cohort_slide(tmp_path / "a.tif", (130, 70, 160))
    found = {}
    for policy in ("float32", precision):
        out = tmp_path / policy
        flags = ("--encoder", "uni", "--precision", policy, "--out", str(out))
        assert main(["features", str(tmp_path / "a.tif"), *flags]) == 0
        found[policy] = features_of(out / "a.h5")[0]
    assert found[precision].dtype == np.float32
    difference = np.abs(found[precision] - found["float32"]).max()
    assert 0 < difference < 0.1 * np.abs(found["float32"]).max()


def test_networks_of_imagenet(tmp_path: Path) -> None:
    """Any size of tile is encoded as it is."""
    write_cohort_slide(tmp_path / "a.tif", (130, 70, 160))
    out = tmp_path / "out"
    assert main(["features", str(tmp_path / "a.tif"), *RESNET, "--out", str(out)]) == 0
    features, coords, about, _ = features_of(out / "a.h5")
    assert features.shape == (len(coords), 512)
    assert about["tfbig_encoder_size"] == 32


def test_dry_run_writes_nothing(slides: Path, tiny: None, tmp_path: Path, capsys) -> None:
    out = tmp_path / "out"
    assert main(["features", str(slides), "--encoder", "uni", "--out", str(out), "--dry-run"]) == 0
    assert "tiles of 32 x 32 pixels would be encoded" in capsys.readouterr().out
    assert not out.exists()


@pytest.mark.parametrize(
    ("flags", "code", "message"),
    [
        ((), 2, "--encoder: missing; expected tfbig features SLIDE ... --encoder NAME --out DIR"),
        (("--encoder", "resnet18", "--mpp", "1", "--level", "0"), 2, "expected one of --mpp"),
        (("--encoder", "uni", "--overlap", "32"), 2, "--overlap 32: expected less than --tile 32"),
        (("--encoder", "resnet18", "--weights-sha256", "0" * 64), 2, "needs --encoder-weights"),
    ],
)
def test_wrong_flags(
    flags: tuple[str, ...],
    code: int,
    message: str,
    slides: Path,
    tiny: None,
    tmp_path: Path,
    capsys,
) -> None:
    out = tmp_path / "out"
    assert main(["features", str(slides), *flags, "--out", str(out)]) == code
    assert message in capsys.readouterr().err
    assert not out.exists()


def test_weights_of_another_network(slides: Path, weights: Path, tmp_path: Path, capsys) -> None:
    """They end the command before the first slide."""
    flags = ("--encoder", "phikon", "--encoder-weights", str(weights), "--out", str(tmp_path / "o"))
    with pytest.MonkeyPatch.context() as patch:
        small = ViT(patch=8, width=24, depth=1, heads=2)
        patch.setitem(
            PATHOLOGY_ENCODERS, "phikon", PathologyEncoder("a/b", "none", small, 0, size=32)
        )
        assert main(["features", str(slides), *flags]) == 1
    error = capsys.readouterr().err
    assert f"--encoder-weights {weights}: " in error
    assert "expects" in error
    assert not (tmp_path / "o" / "failed.csv").exists()


def test_list(capsys) -> None:
    assert main(["features", "--list"]) == 0
    printed = capsys.readouterr().out
    assert "MahmoodLab/UNI2-h" in printed
    assert "timm/resnet50.tv_in1k" in printed
