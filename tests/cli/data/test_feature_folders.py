"""Folders of features of TRIDENT, CLAM and STAMP, which go straight into training."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch_saved
import yaml
from cli_runs import metrics, predictions, write_table

import train
from tfbig import SourceError
from tfbig.cli.data import bags, cohort
from tfbig.cli.data.feature_folders import FeatureFiles
from tfbig.cli.data.splits import SPLITS
from tfbig.cli.main import main

SLIDES = [f"TCGA-{n}.5b7c" for n in range(8)]
"""Names with a point, as those of TCGA."""


def array(number: int, dtype: str = "float32") -> np.ndarray:
    """Features of a slide, whose mean tells its class."""
    rng = np.random.default_rng(number)
    return rng.normal(number % 2, 1, (5 + number, 6)).astype(dtype)


def write_h5(path: Path, coords: Any = None, **datasets: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        for key, data in datasets.items():
            file[key] = data
            count = data.shape[-2]
        file["coords"] = np.zeros((count, 2)) if coords is None else coords


def trident(job: Path) -> Path:
    """Coordinates, features of tiles and of slides, as in a job of TRIDENT; return the folder of features."""
    folder = job / "20x_256px_0px_overlap"
    for number, name in enumerate(SLIDES):
        write_h5(folder / "features_uni_v1" / f"{name}.h5", features=array(number))
        write_h5(folder / "patches" / f"{name}_patches.h5", tiles=np.zeros((5, 2)))
        write_h5(folder / "slide_features_titan" / f"{name}.h5", features=np.zeros((1, 768)))
    return folder / "features_uni_v1"


def trident_job(job: Path) -> Path:
    """Write a job of TRIDENT as `trident` does, and return its folder."""
    trident(job)
    return job


def clam(folder: Path) -> Path:
    """`h5_files`, `pt_files`, and the folder `patches` of the coordinates."""
    for number, name in enumerate(SLIDES):
        write_h5(folder / "h5_files" / f"{name}.h5", features=array(number))
        write_h5(folder / "patches" / f"{name}.h5", tiles=np.zeros((5, 2)))
        (folder / "pt_files").mkdir(exist_ok=True)
        torch_saved.features(folder / "pt_files" / f"{name}.pt", array(number))
    return folder


def clam_pt(folder: Path) -> Path:
    """Write the folders of `clam` without the files in HDF5, which CLAM does not read."""
    shutil.rmtree(clam(folder) / "h5_files")
    return folder


def stamp(folder: Path) -> Path:
    """Files in float16, in subfolders like the slides."""
    for number, name in enumerate(SLIDES):
        path = folder / "uni-1a2b3c4d" / str(number % 2) / f"{name}.h5"
        write_h5(path, feats=array(number, "float16"))
        with h5py.File(path, "a") as file:
            file.attrs.update({"unit": "um", "tile_size_um": 256.0, "feat_type": "tile"})
    return folder / "uni-1a2b3c4d"


def table(file: Path, /, **columns: Callable[[int], str]) -> Path:
    """Write a table of the slides, as for slides themselves; return it."""
    split = ["train", "train", "train", "train", "val", "val", "test", "test"]
    rows = [
        {"case_id": f"c{n}", "slide_id": name, "label": "ab"[n % 2], "split": split[n]}
        | {column: value(n) for column, value in columns.items()}
        for n, name in enumerate(SLIDES)
    ]
    return write_table(file, rows)


def flags(data: Path, features: Path | None) -> list[str]:
    flags = ["--task", "mil", "--bags", "features", "--data", str(data)]
    return flags if features is None else [*flags, "--features", str(features)]


@pytest.mark.parametrize("layout", [trident, trident_job, clam, clam_pt, stamp])
def test_layouts(layout: Callable[[Path], Path], tmp_path: Path) -> None:
    labels = table(tmp_path / "labels.csv", path=lambda n: f"slides/{SLIDES[n]}.svs")
    features = layout(tmp_path / "processed")
    data = bags.load(train.settings_of(flags(labels, features)))
    assert not data.failed
    found = [bag for split in SPLITS for bag in getattr(data, split).bags]
    assert len(found) == len(SLIDES)
    for number, bag in enumerate(found):
        expected = array(number, str(bag.dtype))
        np.testing.assert_array_equal(bag.read(0, bag.shape[0]), expected)
    assert data.classes == ("a", "b")
    assert (found[0].coords is None) == (layout is clam_pt)


@pytest.mark.slow
@pytest.mark.parametrize("layout", [clam_pt, pytest.param(stamp, marks=pytest.mark.slow)])
def test_training(layout: Callable[[Path], Path], tmp_path: Path) -> None:
    """Features in float16, or without coordinates, are trained on and drawn."""
    labels, out = table(tmp_path / "labels.csv"), tmp_path / "out"
    features = layout(tmp_path / "processed")
    assert train.main([*flags(labels, features), "--epochs", "1", "--out", str(out)]) == 0
    assert len(predictions(out)) == 2
    assert metrics(out)["left_out"] == []


def test_paths_of_the_table(tmp_path: Path) -> None:
    """Without `--features`, files are those of the column `path`, else beside the table."""
    features = trident(tmp_path / "processed")
    for file in (
        table(features / "a.csv"),
        table(tmp_path / "b.csv", path=lambda n: str(features / f"{SLIDES[n]}.h5")),
    ):
        assert len(bags.load(train.settings_of(flags(file, None))).train.bags) == 4


@pytest.mark.slow
def test_damaged_and_other_files(tmp_path: Path, capsys) -> None:
    """Each is one line that names the file, what it has and what was expected; the run goes on without."""
    labels, out = table(tmp_path / "labels.csv"), tmp_path / "out"
    features = trident(tmp_path / "processed")
    first, *others = (features / f"{name}.h5" for name in SLIDES)
    write_h5(others[0], features=np.zeros((4, 7), "float32"))
    others[1].write_bytes(b"no features")
    write_h5(others[3], features=np.zeros((4, 6), "float64"))
    others[5].unlink()
    settings = [*flags(labels, features), "--epochs", "1", "--out", str(out)]
    assert train.main(settings) == 3
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("skipped")]
    place = f"{labels}: line"
    assert lines[0].startswith(
        f"skipped {SLIDES[1]}: {place} 3: {others[0]}: has 7 features of a tile in float32; expected 6 in "
        f"float32, as in {first}."
    )
    assert lines[1].startswith(
        f"skipped {SLIDES[2]}: {place} 4: {others[1]}: is not a readable HDF5"
    )
    assert f"{others[3]}: has 6 features of a tile in float64; expected 6 in float32" in lines[2]
    assert f"line 8: no file of slide {SLIDES[6]}. Check --features." in lines[3]
    assert len(lines) == 4


@pytest.mark.slow
def test_features_of_another_encoder_than_the_run_was_trained_on(tmp_path: Path, capsys) -> None:
    """The number of features is saved with the run."""
    labels, run = table(tmp_path / "labels.csv"), tmp_path / "run"
    features = stamp(tmp_path / "processed")
    assert train.main([*flags(labels, features), "--epochs", "1", "--out", str(run)]) == 0
    assert yaml.safe_load((run / "config.yaml").read_text())["feature_width"] == 6
    for number, name in enumerate(SLIDES):
        write_h5(tmp_path / "other" / f"{name}.h5", features=array(number)[:, :5])
    command = ["evaluate", str(run), "--data", str(labels), "--features", str(tmp_path / "other")]
    assert main([*command, "--eval-split", "all", "--out", str(tmp_path / "out")]) == 1
    error = capsys.readouterr().err
    assert f"{SLIDES[0]}.h5: has 5 features of a tile; expected 6 (--feature-width)" in error


def test_features_of_two_encoders(tmp_path: Path) -> None:
    trident(tmp_path / "processed")
    other = tmp_path / "processed" / "20x_256px_0px_overlap" / "features_phikon"
    write_h5(other / f"{SLIDES[0]}.h5", features=array(0))
    files = FeatureFiles(tmp_path / "processed")
    with pytest.raises(SourceError, match=rf"both features of '{SLIDES[0]}'.*--features"):
        files.match(SLIDES[0])
    assert files.match(SLIDES[1]).things == files.match(f"{SLIDES[1]}.svs").things
    assert files.match("another") is None


def test_files_that_are_being_written_are_left_out(tmp_path: Path) -> None:
    write_h5(tmp_path / ".part-a.h5", features=array(0))
    write_h5(tmp_path / ".hidden" / "a.h5", features=array(0))
    assert FeatureFiles(tmp_path).match("a") is None


def test_folder_without_features(tmp_path: Path, capsys) -> None:
    labels = table(tmp_path / "labels.csv")
    (tmp_path / "empty").mkdir()
    assert train.main([*flags(labels, tmp_path / "empty"), "--dry-run"]) == 1
    error = capsys.readouterr().err
    assert f"empty: holds none of the 8 slides of {labels}; the first is {SLIDES[0]}" in error
    assert "Check --features." in error


def test_an_encoder_is_refused(tmp_path: Path, capsys) -> None:
    labels = table(tmp_path / "labels.csv")
    command = [*flags(labels, trident(tmp_path / "processed")), "--encoder", "resnet18"]
    assert train.main([*command, "--dry-run"]) == 2
    assert "--encoder resnet18: bags of --bags features are features" in capsys.readouterr().err


def test_tiles_are_no_features(tmp_path: Path, capsys) -> None:
    labels = table(tmp_path / "labels.csv")
    for name in SLIDES:
        np.save(tmp_path / f"{name}.npy", np.zeros((2, 8, 8, 3), "uint8"))
    assert train.main([*flags(labels, None), "--dry-run"]) == 1
    assert "has shape (2, 8, 8, 3); expected features [n, d]" in capsys.readouterr().err


def test_features_of_another_slide(tmp_path: Path, capsys: Any) -> None:
    """case1.2 does not get the features of case1; suffixes of slides and capitals do not count."""
    for name in ("case1.h5", "case2.svs.h5", "case3.H5", "10005.pt", "unused.h5"):
        write_h5(tmp_path / "features" / name, features=array(0))
    ids = ["case1.2", "case1.svs", "case2.svs", "case3.ome.tif", "10005.0", "case4"]
    labels = write_table(
        tmp_path / "labels.csv", [{"slide_id": i, "label": n % 2} for n, i in enumerate(ids)]
    )
    settings = train.settings_of(flags(labels, tmp_path / "features"))
    rows = cohort.read(settings).table.rows
    found = [row["path"] and row["path"].name for row in rows]
    assert found == [None, "case1.h5", "case2.svs.h5", "case3.H5", "10005.pt", None]
    shown = capsys.readouterr()
    assert (
        f"{tmp_path / 'features'}: 1 slide has no row in {labels}, such as unused.h5" in shown.out
    )
    assert f"{labels}: 10005.0: matched as whole numbers" in shown.err
