"""`tfbig doctor DATA` finds what will fail or mislead a run, and writes nothing."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
from cli_runs import write_table
from PIL import Image

from tfbig import SourceError
from tfbig.cli.data import inspection
from tfbig.cli.main import main
from tfbig.sources import write_nifti


def write_slide(path: Path, rows: int = 64, seed: int = 0, **options: Any) -> Path:
    pixels = np.random.default_rng(seed).integers(0, 256, (rows, 80, 3), np.uint8)
    given = {"resolution": (20000, 20000), "resolutionunit": "CENTIMETER", **options}
    tifffile.imwrite(path, pixels, photometric="rgb", metadata=None, **given)
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three slides with masks, of which nothing is wrong."""
    (tmp_path / "masks").mkdir()
    for number in range(3):
        write_slide(tmp_path / f"s{number}.tif", 64 + number, number)
        mask = np.zeros((64 + number, 80), np.uint8)
        mask[:, 60:] = 1
        Image.fromarray(mask).save(tmp_path / "masks" / f"s{number}.png")
    return tmp_path


def test_a_folder_without_faults(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert main(["doctor", str(folder)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "3 images of 64 x 80 to 66 x 80 pixels",
        "samples: 3 channels of uint8 in 3 images",
        "pixels of 0.5 um",
        "3 masks: 0 75.0%, 1 25.0%",
        "nothing to check",
    ]
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_a_path_that_may_be_two_files(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_table(folder / "slides.csv", [{"slide_id": "a", "path": "s0.tif", "split": "tarin"}])
    (folder / "here").mkdir()
    write_slide(folder / "here" / "s0.tif", 64, 5)
    monkeypatch.chdir(folder / "here")
    assert main(["doctor", str(folder)]) == 3
    printed = capsys.readouterr().out
    assert f"slides.csv: line 2: s0.tif may be {folder}/s0.tif or s0.tif" in printed
    assert "slides.csv: line 2: split 'tarin'; expected train, val or test." in printed


FAULTS = {
    "unreadable": (
        lambda d: (d / "bad.svs").write_text("x"),
        "bad.svs: cannot be read as TIFF",
    ),
    "scale": (
        lambda d: write_slide(d / "s0.tif", resolution=(40000, 40000)),
        "pixels of 0.25 to 0.5 um; read them at one resolution, as by --mpp",
    ),
    "unknown scale": (
        lambda d: write_slide(d / "s0.tif", resolution=(1, 1)),
        "pixels of 0.5 um, unknown in 1 image: s0.tif",
    ),
    "samples": (
        lambda d: tifffile.imwrite(d / "s0.tif", np.zeros((64, 80), np.uint16)),
        "samples: 3 channels of uint8 in 2 images, 1 channel of uint16 in 1 image",
    ),
    "mask of one class": (
        lambda d: Image.fromarray(np.zeros((64, 80), np.uint8)).save(d / "masks" / "s0.png"),
        "1 mask has one class only: s0.png",
    ),
    "mask of colours": (
        lambda d: Image.fromarray(np.eye(3, dtype=np.uint8)[None]).save(d / "masks" / "s0.png"),
        "s0.png: is a picture of colours; expected numbers",
    ),
    "copies": (
        lambda d: shutil.copy(d / "s1.tif", d / "again.tif"),
        "copies of one file: again.tif, s1.tif",
    ),
    "what a reader says": (
        lambda d: write_slide(d / "s0.tif", extratags=[(301, "H", 256, tuple(range(256)), True)]),
        "s0.tif: not applied: its TransferFunction.",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_faults_of_a_folder(name: str, folder: Path) -> None:
    spoil, expected = FAULTS[name]
    spoil(folder)
    faults = inspection.inspect(folder).faults
    assert any(expected in fault for fault in faults), faults


def rows_of(folder: Path) -> list[dict[str, str]]:
    splits = ("train", "val", "test")
    return [
        {"slide_id": f"s{n}", "label": "ab"[n % 2], "split": splits[n], "case_id": f"P{n}"}
        for n in range(3)
    ]


def test_a_table(folder: Path) -> None:
    """Slides are found by their names, and masks beside them."""
    found = inspection.inspect(write_table(folder / "slides.csv", rows_of(folder)))
    assert found == inspection.inspect(folder)  # which has the table
    assert found.faults == []
    assert found.facts == [
        "table: 3 rows, columns slide_id, label, split, case_id",
        "train: 1 row (1 a)",
        "val: 1 row (1 b)",
        "test: 1 row (1 a)",
        "3 images of 64 x 80 to 66 x 80 pixels",
        "samples: 3 channels of uint8 in 3 images",
        "pixels of 0.5 um",
        "3 masks: 0 75.0%, 1 25.0%",
    ]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"case_id": "P1"}, "the case 'P1' is in the splits train and val"),
        ({"slide_id": "s9"}, "column slide_id: 1 of 3 files not found: s9"),
        ({"slide_id": "s1"}, "s1.tif is in the splits train and val"),
    ],
)
def test_faults_of_a_table(changes: dict[str, str], expected: str, folder: Path) -> None:
    rows = rows_of(folder)
    rows[0] |= changes
    faults = inspection.inspect(write_table(folder / "t.csv", rows)).faults
    assert faults == [fault for fault in faults if fault.startswith(expected)]
    assert faults


def test_copies_in_two_splits(folder: Path) -> None:
    shutil.copy(folder / "s0.tif", folder / "s2.tif")
    faults = inspection.inspect(write_table(folder / "t.csv", rows_of(folder))).faults
    assert "copies of one file in several splits: s0.tif, s2.tif" in faults


def test_volumes_and_bags(tmp_path: Path) -> None:
    import tfbig

    volume = tfbig.open(np.arange(120, dtype="int16").reshape(4, 5, 6, 1))
    label = tfbig.open(np.eye(5, 6, dtype="uint8")[None].repeat(4, 0)[..., None])
    write_nifti(tmp_path / "a.nii", volume)
    write_nifti(tmp_path / "l.nii", label)
    table = write_table(tmp_path / "t.csv", [{"image": "a.nii", "label": "l.nii"}])
    assert inspection.inspect(table).facts[1:] == [
        "1 image of 4 x 5 x 6 pixels",
        "samples: 1 channel of int16 in 1 image",
        "1 mask: 0 83.3%, 1 16.7%",
    ]
    tiles = tmp_path / "bag"
    tiles.mkdir()
    for number in range(2):
        Image.fromarray(np.full((8, 9, 3), number, np.uint8)).save(tiles / f"{number}.png")
    table = write_table(tmp_path / "bags.csv", [{"bag": "bag", "label": "0"}])
    assert inspection.inspect(table).facts[1:] == [
        "1 image of 2 x 8 x 9 pixels",
        "samples: 3 channels of uint8 in 1 image",
    ]


def test_nothing_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SourceError, match="holds no image, and names none"):
        inspection.inspect(tmp_path)
    assert main(["doctor", str(tmp_path / "none")]) == 2
    assert "none: no such file or folder" in capsys.readouterr().err


def test_json(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "bad.svs").write_text("x")
    assert main(["doctor", str(folder), "--json"]) == 3
    report = json.loads(capsys.readouterr().out)
    assert report.keys() == {"facts", "faults"}
    assert len(report["faults"]) == 1
