"""Tables of all tasks: paths are relative to the table, else to the working directory; patients stay in one split."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_runs import write_table
from scene_files import pixels, write_scene
from volume_files import write_nifti

import train
from tfbig import SourceError
from tfbig.cli.data import (
    bags,
    cohort,
    images,
    masked_images,
    scenes,
    slide_splits,
    splitting,
    volume_cases,
)
from tfbig.cli.data.run_data import Data
from tfbig.sources.table import Table


def write_array(path: Path, number: int) -> None:
    np.save(path, np.full((64, 64, 3), 100 + number, np.uint8))


def write_mask(path: Path, number: int) -> None:
    np.save(path, np.full((64, 64, 1), 1, np.uint8))


def write_bag(path: Path, number: int) -> None:
    np.save(path, np.full((4, 8, 8, 3), number, np.uint8))


def write_bands(path: Path, number: int) -> None:
    write_scene(path, pixels(40, 40, 3, seed=number))


def write_classes(path: Path, number: int) -> None:
    write_scene(path, np.random.default_rng(number).integers(0, 2, (40, 40)).astype("uint8"))


def write_volume(path: Path, number: int) -> None:
    write_nifti(path, np.full((4, 5, 6), number % 2, "uint8"))


LABELS = {"label": [0, 1] * 3}
SPLITS = {"split": ["train", "train", "val", "val", "test", "test"]}
TASKS: dict[str, tuple[str, dict[str, Any], list[str], Any]] = {
    "slides": (
        "slides.csv",
        {"slide_id": [*"abcdef"], "path": (write_array, ".npy"), **LABELS},
        ["--task", "mil", "--bags", "slides", "--slide-mpp", "0.5"],
        cohort.read,
    ),
    "masks": (
        "slides.csv",
        {"slide_id": [*"abcdef"], "path": (write_array, ".npy"), "mask": (write_mask, "_m.npy")},
        ["--task", "segmentation"],
        slide_splits._read,
    ),
    "images": (
        "images.csv",
        {"image": (write_array, ".npy"), **LABELS},
        ["--task", "images", "--images", "folder"],
        images.load,
    ),
    "bags": (
        "bags.csv",
        {"bag": (write_bag, ".npy"), **LABELS},
        ["--task", "mil", "--bags", "folder"],
        bags.load,
    ),
    "masked": (
        "images.csv",
        {"image": (write_array, ".npy"), "mask": (write_mask, "_m.npy")},
        ["--task", "patchgd-segmentation"],
        masked_images.load,
    ),
    "scenes": (
        "scenes.csv",
        {"scene": (write_bands, ".tif"), "label": (write_classes, "_l.tif")},
        ["--task", "scenes", "--crop", "32x32"],
        scenes.load,
    ),
    "volumes": (
        "volumes.csv",
        {"image": (write_volume, ".nii"), "label": (write_volume, "_l.nii")},
        ["--task", "volume-segmentation", "--class-names", "a", "b"],
        volume_cases.load,
    ),
}


def write(
    folder: Path, name: str, columns: dict[str, Any], others: dict[str, list[str]]
) -> dict[str, list[str]]:
    """Write a table of six items and the files that it names, and return these by column."""
    folder.mkdir()
    values, files = {}, {}
    for column, cells in (columns | others).items():
        values[column] = cells
        if isinstance(cells, tuple):
            writer, suffix = cells
            files[column] = values[column] = [f"{letter}{suffix}" for letter in "abcdef"]
            for number, file in enumerate(files[column]):
                writer(folder / file, number)
    rows = [dict(zip(values, row, strict=True)) for row in zip(*values.values(), strict=True)]
    write_table(folder / name, rows)
    return files


def names_of(found: Any) -> list[str]:
    return [reason for _, reason in found.failed] if isinstance(found, Data) else []


@pytest.mark.parametrize("task", TASKS)
def test_paths_of_all_tasks(task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name, columns, flags, load = TASKS[task]
    data, here = tmp_path / "data", tmp_path / "here"
    files = write(data, name, columns, SPLITS)
    here.mkdir()
    monkeypatch.chdir(here)
    is_file = task in ("slides", "scenes")
    settings = train.settings_of([*flags, "--data", str(data / name if is_file else data)])
    if task == "masks":
        read, load = load, lambda settings: read(settings, data / name)
    load(settings)
    for column, (writer, _) in ((c, v) for c, v in columns.items() if isinstance(v, tuple)):
        first = files[column][0]
        writer(here / first, 7)
        with pytest.raises(SourceError, match=rf"{name}: {first} may be {data / first}, relative"):
            load(settings)
        (data / first).unlink()
        assert not names_of(load(settings))
        confined = train.settings_of(
            [*flags, "--confine", "--data", str(data / name if is_file else data)]
        )
        with pytest.raises(SourceError, match=rf"{first}: lies outside of {data}"):
            load(confined)
        (here / first).rename(data / first)
    assert not names_of(load(settings))


@pytest.mark.parametrize("task", TASKS)
def test_patients_of_all_tasks(task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All rows of a patient are in one split, also if each is a case; splits that tear a patient apart are refused."""
    name, columns, flags, load = TASKS[task]
    data, found = tmp_path / "data", []
    with_splits = splitting.with_splits

    def noting(*arguments: Any, **options: Any) -> Table:
        found.append(with_splits(*arguments, **options))
        return found[-1]

    monkeypatch.setattr(splitting, "with_splits", noting)
    if task == "masks":
        read, load = load, lambda settings: read(settings, data / name)
    patients = {"patient": ["p", "q", "r"] * 2, "case_id": [*"uvwxyz"]}
    write(data, name, columns, patients)
    place = data / name if task in ("slides", "scenes") else data
    settings = train.settings_of([*flags, "--data", str(place), "--shares", "1", "1", "1"])
    load(settings)
    (table,) = found
    splits = [row["split"] for row in table.rows]
    assert splits[:3] == splits[3:] and sorted(splits[:3]) == ["test", "train", "val"]
    rows = [
        {**{column: row[column] for column in table.columns if column in row}, "split": split}
        for row, split in zip(table.rows, SPLITS["split"], strict=True)
    ]
    rows = [{key: str(value) for key, value in row.items()} for row in rows]
    write_table(data / name, rows)
    with pytest.raises(SourceError, match="the case 'p' is in the splits train and val"):
        load(settings)
