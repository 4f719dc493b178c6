"""Damaged files end a command with a message that has their name, never with a traceback."""

import shutil

import numpy as np
import pytest
from cli_runs import MIL, like_a_test, write_square, write_table

import train
from tfbig.cli.main import main

NOISE = np.random.default_rng(0).integers(0, 256, 5000, np.uint8).tobytes()
TILE = ["--tile", "32", "--tissue", "none"]
DAMAGE = {
    "empty": lambda data: b"",
    "noise": lambda data: NOISE,
    "latin 1": lambda data: data + "größe,größe,größe\n".encode("latin-1"),
    "other columns": lambda data: b"apples,pears\n1,2\n",
    "no values": lambda data: data.splitlines()[0] + b"\n\n,,,,\n",
    "zeros": lambda data: bytes(len(data)),
}
"""Function from the bytes of a file to damaged ones."""


def error_of(call, capsys):
    """Return the exit code of a command, and what it prints to standard error."""
    try:
        code = call()
    except SystemExit as ended:
        code = ended.code
    return code, capsys.readouterr().err


@pytest.fixture
def cohort(tmp_path):
    """A table of six slides, its splits and a table of pixel sizes."""
    (tmp_path / "data").mkdir()
    rows = []
    for number in range(6):
        write_square(tmp_path / "data" / f"s{number}.tif", side=128)
        split = ("train", "val", "test")[number // 2]
        rows.append({"slide_id": f"s{number}", "label": f"l{number % 2}", "split": split})
    write_table(tmp_path / "data" / "slides.csv", rows)
    columns = {"": 0, "train": "s0", "val": "s2", "test": "s4"}
    write_table(tmp_path / "data" / "splits_0.csv", [columns])
    write_table(tmp_path / "data" / "mpp.csv", [{"wsi": "s0.tif", "mpp": 0.5}])
    (tmp_path / "data" / "flags.yaml").write_text("epochs: 1\n")
    return tmp_path / "data"


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("name", ["slides.csv", "splits_0.csv", "mpp.csv", "flags.yaml"])
def test_tables_of_training(name, damage, cohort, capsys):
    file = cohort / name
    file.write_bytes(DAMAGE[damage](file.read_bytes()))
    flags = ["--task", "mil", "--bags", "slides", "--tile", "16", "--mpp", "1", "--dry-run"]
    flags += ["--data", str(cohort / "slides.csv"), "--splits", str(cohort / "splits_0.csv")]
    flags += ["--mpp-of", str(cohort / "mpp.csv"), "--config", str(cohort / "flags.yaml")]
    if (name, damage) == ("flags.yaml", "empty"):
        return
    code, error = error_of(lambda: train.main(flags), capsys)
    assert code in (1, 2)
    assert name in error


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize(
    ("task", "name"), [(["mil", "--bags"], "bags.csv"), (["images", "--images"], "images.csv")]
)
def test_tables_of_folders(task, name, damage, tmp_path, capsys):
    key = name.partition("s.")[0]
    write_table(tmp_path / name, [{key: "a.npy", "label": 0, "split": "train"}])
    (tmp_path / name).write_bytes(DAMAGE[damage]((tmp_path / name).read_bytes()))
    flags = ["--task", *task, "folder", "--data", str(tmp_path), "--dry-run"]
    code, error = error_of(lambda: train.main(flags), capsys)
    assert code == 1
    assert name in error


@pytest.fixture(scope="module")
def tiled(tmp_path_factory):
    """A folder with a slide, a damaged one, and their results by `tfbig tile`."""
    folder = tmp_path_factory.mktemp("tiled")
    write_square(folder / "a.tif", side=256)
    (folder / "b.tif").write_bytes(b"no slide")
    with like_a_test():
        assert main(["tile", str(folder), *TILE, "--out", str(folder / "out")]) == 3
    return folder


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("name", ["failed.csv", "versions.json", "tile.yaml"])
def test_results_of_tile(name, damage, tiled, tmp_path, capsys):
    shutil.copytree(tiled, tmp_path / "copy")
    slides, out = tmp_path / "copy", tmp_path / "copy" / "out"
    (out / name).write_bytes(DAMAGE[damage]((out / name).read_bytes()))
    (out / "a.h5").unlink()
    flags = [str(slides / "a.tif"), str(slides / "b.tif"), *TILE, "--out", str(out)]
    code, error = error_of(lambda: main(["tile", *flags]), capsys)
    if (name, damage) == ("failed.csv", "empty"):
        assert code == 3  # no failures so far
        return
    assert code in (1, 2)
    assert name in error


@pytest.mark.parametrize("damage", ["empty", "noise", "zeros"])
def test_coordinates(damage, cohort, tmp_path, capsys):
    (tmp_path / "coords").mkdir()
    for number in range(6):
        (tmp_path / "coords" / f"s{number}.h5").write_bytes(DAMAGE[damage](bytes(2000)))
    flags = ["--task", "mil", "--bags", "slides", "--data", str(cohort), "--dry-run"]
    code, error = error_of(
        lambda: train.main([*flags, "--coords", str(tmp_path / "coords")]), capsys
    )
    assert code == 1
    assert "s0.h5: is not a readable HDF5 file" in error


@pytest.mark.parametrize("damage", ["empty", "noise", "zeros"])
def test_masks_and_weights(damage, tmp_path, capsys):
    (tmp_path / "masks").mkdir()
    for name in ("a", "b"):
        write_square(tmp_path / f"{name}.tif", side=128)
        (tmp_path / "masks" / f"{name}.png").write_bytes(DAMAGE[damage](bytes(500)))
    code, error = error_of(lambda: train.main(["--data", str(tmp_path), "--dry-run"]), capsys)
    assert code == 1
    assert "a.png" in error
    for name in ("x.keras", "x.weights.h5", "x.npz"):
        (tmp_path / name).write_bytes(DAMAGE[damage](bytes(500)))
        flags = [*MIL, "--dry-run", "--encoder-weights", str(tmp_path / name)]
        code, error = error_of(lambda flags=flags: train.main(flags), capsys)
        assert code == 1
        assert name in error
