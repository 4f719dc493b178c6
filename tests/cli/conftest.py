"""Runs that several test files read; tests that change a run copy its folder."""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

import cli_runs
import pytest
from samples import write_slide

import train
from tfbig.cli.main import main
from tfbig.results import figures


class Run(NamedTuple):
    """A finished run: its folder, its data, its exit code and what it printed."""

    folder: Path
    data: Path
    code: Any
    out: str
    err: str


def run_once(arguments: list[str], folder: Path, data: Path) -> Run:
    """Train as in a test, and return the run."""
    out, err = io.StringIO(), io.StringIO()
    with cli_runs.like_a_test(), redirect_stdout(out), redirect_stderr(err):
        code = train.main([*arguments, "--out", str(folder)])
    return Run(folder, data, code, out.getvalue(), err.getvalue())


USUAL_DPI = figures.DPI


@pytest.fixture(autouse=True)
def cheap_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let runs draw small figures and views."""
    cli_runs.make_cheap(monkeypatch)


@pytest.fixture
def usual_figures(cheap_runs: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw figures as users see them."""
    monkeypatch.setattr(figures, "DPI", USUAL_DPI)


@pytest.fixture(scope="session")
def segmentation_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three slides with tissue."""
    folder = tmp_path_factory.mktemp("segmentation") / "slides"
    for name in "abc":
        write_slide(folder / f"{name}.tif", ord(name))
    return folder


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Three slides with tissue, which a test may change."""
    folder = tmp_path / "slides"
    for name in "abc":
        write_slide(folder / f"{name}.tif", ord(name))
    return folder


@pytest.fixture(scope="session")
def segmentation_run(segmentation_data: Path) -> Run:
    """A run of `--task segmentation`."""
    flags = [*cli_runs.SEGMENTATION, "--data", str(segmentation_data)]
    return run_once(flags, segmentation_data.parent / "run", segmentation_data)


@pytest.fixture(scope="session")
def skipping_run(segmentation_data: Path) -> Run:
    """A run of `--task segmentation` on whole slides without their background, by tissue of one grey value."""
    flags = [
        *cli_runs.without(cli_runs.SEGMENTATION, "--crops"),
        "--data",
        str(segmentation_data),
        "--crop",
        "whole",
    ]
    flags += ["--epochs", "1", "--tissue", "grey"]
    return run_once(flags, segmentation_data.parent / "skipping", segmentation_data)


@pytest.fixture(scope="session")
def logged_run(segmentation_data: Path) -> Run:
    """A quiet run of `--task segmentation` with `--tensorboard`."""
    flags = [*cli_runs.SEGMENTATION, "--data", str(segmentation_data)]
    flags += ["--epochs", "1", "--tensorboard", "--quiet"]
    return run_once(flags, segmentation_data.parent / "logged", segmentation_data)


@pytest.fixture(scope="session")
def mil_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run of `--task mil` on drawn shapes, started with `--resume`."""
    folder = tmp_path_factory.mktemp("mil")
    return run_once([*cli_runs.MIL, "--resume"], folder / "run", folder)


@pytest.fixture(scope="session")
def device_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run of `--task mil --mode device` on drawn shapes, with flags from a `--config` file."""
    folder = tmp_path_factory.mktemp("device")
    (folder / "mine.yaml").write_text("epochs: 7\nlr: 0.002\n")
    flags = ["--config", str(folder / "mine.yaml"), *cli_runs.MIL, "--mode", "device"]
    return run_once(flags, folder / "run", folder)


@pytest.fixture(scope="session")
def cohort_table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a table of eleven slides, one damaged and one missing; tests must not change it."""
    return cli_runs.write_cohort(tmp_path_factory.mktemp("cohort") / "data")


@pytest.fixture(scope="session")
def tiles(cohort_table: Path) -> Path:
    """A folder with the tiles of these slides, by `tfbig tile`."""
    slides = [str(path) for path in sorted(cohort_table.parent.rglob("s*.tif"))]
    folder = cohort_table.parent.parent / "tiles"
    flags = ["--tile", "16", "--mpp", "1.0", "--min-tissue", "0.5", "--out", str(folder)]
    with cli_runs.like_a_test():
        assert main(["tile", *slides, *flags]) == 3  # one is damaged
    return folder


@pytest.fixture
def cohort_data(tmp_path: Path) -> Path:
    """Return a copy of the table and the slides, which a test may change."""
    return cli_runs.write_cohort(tmp_path / "data")


@pytest.fixture(scope="session")
def slide_bags_run(cohort_table: Path) -> Run:
    """A run of `--task mil` on tiles of the slides, with augmentation, split in three folds."""
    flags = [*cli_runs.SLIDE_BAGS, "--data", str(cohort_table), "--augment", "--folds", "3"]
    flags += ["--fold", "0"]
    return run_once(flags, cohort_table.parent.parent / "bags", cohort_table)


@pytest.fixture(scope="session")
def whole_slides_run(cohort_table: Path) -> Callable[[str], Run]:
    """Function from a mode to a run of `--task images` on whole slides, trained on first use."""
    runs: dict[str, Run] = {}

    def run(mode: str) -> Run:
        if mode not in runs:
            head = "abmil" if mode == "patchgd" else "smaller"
            flags = ["--head", head, "--augment", "slide", "--folds", "3"]
            flags += ["--fold", "0"]
            flags = [*cli_runs.whole_slides(mode), *flags, "--data", str(cohort_table)]
            runs[mode] = run_once(flags, cohort_table.parent.parent / mode, cohort_table)
        return runs[mode]

    return run


@pytest.fixture
def slides(tmp_path: Path) -> Path:
    """A folder with two slides with a purple square."""
    folder = tmp_path / "slides"
    folder.mkdir()
    cli_runs.write_square(folder / "a.tif")
    cli_runs.write_square(folder / "b.ome.tif", metadata=None)
    return folder


@pytest.fixture(scope="session")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with six small slides, two of them damaged."""
    folder = tmp_path_factory.mktemp("many")
    cli_runs.write_many(folder)
    return folder


@pytest.fixture(scope="session")
def whole(many: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiles of these slides, by one process."""
    folder = tmp_path_factory.mktemp("whole") / "out"
    assert main(["tile", str(many), "--out", str(folder), *cli_runs.TILE]) == 3
    return folder
