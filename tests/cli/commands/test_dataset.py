"""`tfbig dataset`, and the commands that it prints, run as they are printed with smaller settings behind them."""

from __future__ import annotations

import csv
import os
import shlex
from pathlib import Path

import dataset_folders
import h5py
import numpy as np
import pytest
from cli_runs import metrics, predictions, write_cohort_slide

from tfbig.cli.data import splits
from tfbig.cli.main import main
from tfbig.recipes import train_with_a3

SMALL = "--encoder small --encoder-weights random"
SLIDE_BAGS = (
    f"{SMALL} --tile 40 --sample 4 --val-sample 4 --epochs 1 --instances-at-once 8 --accumulate 1"
)
IMAGES = f"{SMALL} --latent 8 --head smaller --head-width 8 --epochs 1 --batch-size 4"
SMALLER = {
    **dict.fromkeys(["panda", "camelyon16", "camelyon17"], SLIDE_BAGS),
    "tcga-nsclc": f"{IMAGES} --side 64 --patch 32",
    "imagenet-100": f"{IMAGES} --side 48 --patch 16 --patch-stride 8",
}
"""Flags that scale the recipe of a data set."""
PATCHGD = f"{IMAGES} --side 64 --patch 32"
"""The same for the recipe of PatchGD on PANDA."""
WHOLE = f"{SMALL} --epochs 1 --accumulate 1 --latent 8 --head-width 8 --mean 0 --std 1"
"""The same for the recipes of whole slides."""
A3 = "train-with-a3"
"""Stands for the script that trains with A3."""
EVALUATION = "--eval-sample 3 --eval-repeats 2"
SLIDES = {"panda": "*.tiff", "camelyon17": "*_node_0.tif", "tcga-nsclc": "*-DX1*.svs"}
"""Slides to predict."""


def commands(capsys: pytest.CaptureFixture[str], name: str, out: str) -> list[list[str]]:
    """Run `tfbig dataset` in the working directory, and return the commands of its last lines."""
    capsys.readouterr()
    assert main(["dataset", name, name, "--out", out]) in (0, 3)
    printed = capsys.readouterr().out.replace(
        f"python -m {train_with_a3.__name__} ", f"tfbig {A3} "
    )
    lines = printed.splitlines()
    assert lines[-1].startswith("tfbig ")
    return [shlex.split(line)[1:] for line in lines if line.startswith("tfbig ")]


def run_printed(command: list[str]) -> int:
    """Run a command, or the script that trains with A3."""
    return train_with_a3.main(command[1:]) if command[0] == A3 else main(command)


def smaller(name: str, command: list[str]) -> list[str]:
    """Return a command with the flags that scale it."""
    flags = PATCHGD if "patchgd-panda" in command[2] else SMALLER[name]
    if "whole-slides" in command[2]:
        flags = WHOLE
    return [*command, *flags.split(), "--quiet"]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory without recipes, which are those of the package."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", SMALLER)
def test_printed_commands_plan(name: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The first recipe of each data set reads what was written."""
    dataset_folders.FOLDERS[name](here / name)
    printed = commands(capsys, name, "tables")
    first = next(command for command in printed if command[0] in ("train", A3))
    assert run_printed([*smaller(name, first), "--dry-run"]) == 0
    assert not (here / "runs").exists()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["panda", "camelyon17"])
def test_all_printed_commands_plan(
    name: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = here / name
    dataset_folders.panda(folder, 10, splits=False) if name == "panda" else (
        dataset_folders.FOLDERS[name](folder)
    )
    printed = commands(capsys, name, "tables")
    assert len(printed) == {"panda": 6, "camelyon17": 3}[name]
    for command in printed:
        assert run_printed([*smaller(name, command), "--dry-run"]) == 0, command


def check_run(name: str, here: Path, command: list[str]) -> Path:
    """Train, resume and evaluate with a printed command, and return the run folder."""
    run = here / command[command.index("--out") + 1]
    assert run_printed(smaller(name, command)) == 0
    assert run_printed([*smaller(name, command), "--epochs", "2", "--resume"]) == 0
    assert metrics(run)["epochs"] == 2
    assert main(["evaluate", str(run), "--out", "again", "--quiet"]) == 0
    assert predictions(here / "again") == predictions(run)
    return run


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in SMALLER if name != "camelyon16"])
def test_train_resume_evaluate_predict(
    name: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dataset_folders.FOLDERS[name](here / name)
    run = check_run(name, here, commands(capsys, name, "tables")[0])
    if name in SLIDES:
        slides = [str(path) for path in sorted((here / name).rglob(SLIDES[name]))[:3]]
        assert main(["predict", str(run), *slides, "--out", "predicted", "--quiet"]) == 0
        assert len(predictions(here / "predicted")) == 3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "external", "slides"), [("panda", "tcga-prad", 5), ("camelyon17", "camelyon16", 26)]
)
def test_external_test(
    name: str, external: str, slides: int, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The printed command evaluates all slides of CAMELYON16, and one of each patient of TCGA-PRAD."""
    for each in (name, external):
        dataset_folders.FOLDERS[each](here / each)
    assert main(smaller(name, commands(capsys, name, f"tables/{name}")[0])) == 0
    command = commands(capsys, external, f"tables/{external}")[0]
    assert main([*command, *EVALUATION.split(), "--out", "tested", "--quiet"]) == 0
    assert len(predictions(here / "tested")) == slides
    assert "test_qwk_std" in metrics(here / "tested")


def test_features(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Features of a foundation model become `bags.csv`, which the recipes of the baselines read."""
    dataset_folders.camelyon17(here / "camelyon17", corrected=True)
    rng = np.random.default_rng(0)
    for path in sorted((here / "camelyon17").rglob("*.tif"))[1:]:
        with h5py.File(here / f"{path.stem}.h5", "w") as file:
            file["features"] = rng.normal(size=(6, 8)).astype("float32")
            file["coords"] = 256 * np.stack(np.divmod(np.arange(6), 3), -1)
    flags = ["--features", str(here), "--out", "tables"]
    assert main(["dataset", "camelyon17", "camelyon17", *flags]) == 3
    lines = capsys.readouterr().out.splitlines()
    assert f"missing: {here}: patient_100_node_0.h5" in lines
    command = "tfbig train --config recipes/features-camelyon17.yaml --data tables"
    assert lines[-1] == f"{command} --out runs/features-camelyon17"
    assert main([*shlex.split(command)[1:], "--dry-run"]) == 0
    assert "train: 48 bags of 6 to 6 instances" in capsys.readouterr().out
    dataset_folders.imagenet100(here / "pictures")
    assert main(["dataset", "imagenet-100", "pictures", "--features", str(here)]) == 2
    assert "--features: is for data sets of slides only" in capsys.readouterr().err


def touch(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()


def test_table_and_missing_files(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for k, kind in enumerate(("LUAD", "LUSC")):
        touch(here / "data", *(f"{kind}/TCGA-A{k}-00{n:02}-01Z-00-DX1.X.svs" for n in range(25)))
    touch(here / "data", "again/LUAD/TCGA-A0-0001-01Z-00-DX1.X.svs")
    assert main(["dataset", "tcga-nsclc", "data", "--out", "out"]) == 3
    output = capsys.readouterr().out
    assert "slides.csv, train: 36 slides (18 LUAD, 18 LUSC)" in output
    assert "missing: data/LUAD/TCGA-A0-0001-01Z-00-DX1.X.svs: its slide has two files" in output
    rows = list(csv.DictReader(Path("out/slides.csv").read_text().splitlines()))
    assert list(rows[0]) == ["case_id", "slide_id", "label", "split", "path", "site"]
    assert all(Path(row["path"]).is_absolute() for row in rows)
    clam = splits.read_clam_splits(Path("out/splits_0.csv"))
    assert clam == {row["slide_id"]: row["split"] for row in rows}
    touch(here / "small", *(f"{kind}/TCGA-A0-0001-01Z-00-DX1.X.svs" for kind in ("LUAD", "LUSC")))
    assert main(["dataset", "tcga-nsclc", "small", "--out", "splits"]) == 3
    output = capsys.readouterr().out
    assert "missing: slides.csv: items in split" in output
    assert output.endswith("No command is printed, because training needs what is missing.\n")


def test_errors(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    touch(here, "data/other.tif")
    assert main(["dataset", "camelyon16", "data"]) == 1
    output = capsys.readouterr()
    assert "missing: reference.csv" in output.out
    assert "\n  **/*.csv" in output.out
    assert "holds nothing of camelyon16 that can be used; expected the files above." in output.err
    assert main(["dataset", "panda", "data"]) == 1
    assert "train.csv: no such file; expected a table" in capsys.readouterr().err
    assert main(["dataset", "panda"]) == 0
    assert "isup_grade" in capsys.readouterr().out
    assert main(["dataset", "panda", "none"]) == 2
    output = capsys.readouterr()
    assert "none: no such folder. Check the path" in output.err
    assert "\n  train.csv" in output.out


def test_tables_of_other_data_are_not_overwritten(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dataset_folders.tcga_prad(here / "prad")
    assert main(["dataset", "tcga-prad", "prad"]) == 3
    assert "Add --out FOLDER to write the table" in capsys.readouterr().out
    for _ in range(2):
        assert main(["dataset", "tcga-prad", "prad", "--out", "tables"]) == 3
    before = os.stat("tables/slides.csv").st_size
    dataset_folders.camelyon16(here / "camelyon16", (2, 2, 2))
    assert main(["dataset", "camelyon16", "camelyon16", "--out", "tables"]) == 1
    assert "slides.csv: is the table of another data set" in capsys.readouterr().err
    assert os.stat("tables/slides.csv").st_size == before


def test_folds(tmp_path: Path) -> None:
    for number in range(12):
        kind = ("normal", "tumor")[number % 2]
        write_cohort_slide(tmp_path / f"{kind}_{number:03}.tif", (130, 70, 160), 64)
    flags = ["--out", str(tmp_path / "out"), "--folds", "4"]
    assert main(["dataset", "camelyon16", str(tmp_path), *flags]) == 3
    names = sorted(p.name for p in (tmp_path / "out").glob("splits_*"))
    assert names == [f"splits_{n}.csv" for n in range(4)]
    split_of_slide = splits.read_clam_splits(tmp_path / "out" / "splits_3.csv")
    assert [*split_of_slide.values()].count("test") == 3


@pytest.mark.slow
def test_whole_slides_of_panda(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The recipe of whole slides skips their background, and grades new ones."""
    dataset_folders.panda(here / "panda", 10, splits=False)
    printed = commands(capsys, "panda", "tables")
    (command,) = (command for command in printed if "whole-slides" in command[2])
    run = check_run("panda", here, command)
    shares = [(float(row["foreground"]), float(row["computed"])) for row in predictions(run)]
    assert all(
        0 < foreground < 1 and foreground <= computed <= 1 for foreground, computed in shares
    )
    slide = next(str(path) for path in (here / "panda").rglob("*.tiff"))
    assert main(["predict", str(run), slide, "--out", "predicted", "--quiet"]) == 0
    (row,) = predictions(here / "predicted")
    assert row["predicted"].startswith("ISUP")
