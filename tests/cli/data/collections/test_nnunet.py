"""`tfbig dataset nnunet` says what is there and what is wrong, and prints commands that run."""

from __future__ import annotations

import shlex
from pathlib import Path

import numpy as np
import pytest
from volume_files import write_nifti
from volume_sets import SIZE, nnunet

from tfbig.cli.main import main


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_dataset(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nnunet(here / "my set")
    assert main(["dataset", "nnunet", "my set"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert (
        "6 cases with labels, 1 to predict, channels CT, classes background, artery, vein" in lines
    )
    assert "spacing in mm: 1.5 x 0.8 x 0.8 to 1.5 x 0.8 x 0.8, median 1.5 x 0.8 x 0.8" in lines
    assert "orientation: SAR 6" in lines
    assert "cases with each class: background 6, artery 6, vein 6" in lines
    assert lines[-3] == (
        "tfbig train --config recipes/volumes-whole.yaml --data 'my set' --out runs/volumes-whole"
    )


@pytest.mark.slow
def test_printed_commands_run(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nnunet(here / "set")
    assert main(["dataset", "nnunet", "set"]) == 0
    lines = capsys.readouterr().out.splitlines()
    printed = [shlex.split(line)[1:] for line in lines if line.startswith("tfbig ")]
    assert len(printed) == 2
    for command in printed:
        assert main([*command, "--dry-run"]) == 0


def test_what_is_wrong(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nnunet(here / "set")
    labels = here / "set" / "labelsTr"
    write_nifti(labels / "tubes_001.nii.gz", np.full(SIZE, 9, "uint8"), np.diag([0.8, 0.8, 1.5, 1]))
    write_nifti(labels / "tubes_002.nii.gz", np.zeros((5, 5, 5), "uint8"))
    data = here / "set" / "imagesTr" / "tubes_003_0000.nii.gz"
    data.write_bytes(data.read_bytes()[:-50])
    (labels / "tubes_004.nii.gz").unlink()
    assert main(["dataset", "nnunet", "set"]) == 3
    output = capsys.readouterr().out
    assert "tubes_001.nii.gz: has the label 9; expected 0 to 2" in output
    assert "tubes_002.nii.gz: is 5 x 5 x 5 voxels; expected 12 x 10 x 9" in output
    assert "tubes_003_0000.nii.gz: is damaged or truncated" in output
    assert "missing: set/labelsTr/tubes_004.nii.gz" in output
    assert "cases with each class: background 2, artery 2, vein 2" in output
