"""Layouts of nnU-Net and the Decathlon, and what is wrong with them in one line each."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from volume_sets import change, decathlon
from volume_sets import nnunet as write_nnunet

from tfbig.cli.data import nnunet
from tfbig.errors import SourceError


def test_nnunet(tmp_path: Path) -> None:
    found = nnunet.read(write_nnunet(tmp_path))
    assert (found.channels, found.classes) == (("CT",), ("background", "artery", "vein"))
    assert [case.name for case in found.cases] == [f"tubes_{n:03}" for n in range(6)]
    first = found.cases[0]
    assert first.images == (tmp_path / "imagesTr" / "tubes_000_0000.nii.gz",)
    assert first.labels == tmp_path / "labelsTr" / "tubes_000.nii.gz"
    assert [case.name for case in found.others] == ["tubes_900"]
    assert found.missing == ()


def test_several_channels_and_gaps(tmp_path: Path) -> None:
    folder = write_nnunet(tmp_path)
    change(folder, channel_names={"0": "CT", "1": "PET"})
    for case in range(5):
        source = folder / "imagesTr" / f"tubes_{case:03}_0000.nii.gz"
        shutil.copy(source, source.with_name(source.name.replace("_0000", "_0001")))
    (folder / "labelsTr" / "tubes_001.nii.gz").unlink()
    found = nnunet.read(folder)
    assert [case.name for case in found.cases] == [f"tubes_{n:03}" for n in (0, 2, 3, 4)]
    assert [path.name[-11:] for path in found.cases[0].images] == ["0000.nii.gz", "0001.nii.gz"]
    assert found.missing == (
        str(folder / "labelsTr" / "tubes_001.nii.gz"),
        "imagesTr/tubes_005_*.nii.gz: 1 of 2 channels",
    )


def test_listed_files(tmp_path: Path) -> None:
    found = nnunet.read(decathlon(tmp_path))
    assert (found.name, found.channels) == ("BRATS", ("FLAIR", "T1w"))
    assert found.classes == ("background", "edema", "tumour")
    assert found.cases[3].name == "BRATS_003" and len(found.cases) == 6
    (tmp_path / "imagesTr" / "BRATS_002.nii.gz").rename(
        tmp_path / "imagesTr" / "BRATS_002_0000.nii.gz"
    )
    (tmp_path / "imagesTr" / "BRATS_002_0001.nii.gz").touch()
    (tmp_path / "imagesTr" / "BRATS_004.nii.gz").unlink()
    found = nnunet.read(tmp_path)  # nnU-Net of the first version names its files so
    assert [case.name for case in found.cases] == [f"BRATS_{n:03}" for n in (0, 1, 2, 3, 5)]
    assert found.missing == (str(tmp_path / "imagesTr" / "BRATS_004.nii.gz"),)


def test_files_named_in_the_table_of_the_second_version(tmp_path: Path) -> None:
    folder = write_nnunet(tmp_path)
    entry = {"images": ["imagesTr/tubes_001_0000.nii.gz"], "label": "labelsTr/tubes_001.nii.gz"}
    change(folder, dataset={"mine": entry})
    (case,) = nnunet.read(folder).cases
    assert (case.name, case.images[0].name) == ("mine", "tubes_001_0000.nii.gz")


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no labels": ({"labels": None}, "has no 'labels'"),
    "no channels": ({"channel_names": None}, "has no 'channel_names' or 'modality'"),
    "channels by name": ({"channel_names": {"CT": 0}}, "has no 'channel_names' or 'modality' for"),
    "gap": (
        {"labels": {"background": 0, "a": 2}},
        r"its labels are .*; expected the numbers 0, 1, 2",
    ),
    "one": ({"labels": {"background": 0}}, "has 1 label; expected the background and another"),
    "regions": (
        {"labels": {"background": 0, "whole": [1, 2], "core": [2]}},
        "label 'whole' is a region of several values",
    ),
    "ignore": ({"labels": {"background": 0, "a": 1, "ignore": 2}}, "has a label 'ignore'"),
    "ending": ({"file_ending": ".mha"}, r"has the file_ending '\.mha'; expected one of \.nii\.gz"),
    "no case": ({"file_ending": ".nrrd"}, "none of its cases has an image and labels"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_entries(case: str, tmp_path: Path) -> None:
    entries, message = WRONG[case]
    change(write_nnunet(tmp_path, cases=1), **entries)
    with pytest.raises(SourceError, match=message) as caught:
        nnunet.read(tmp_path)
    assert "\n" not in str(caught.value) and "dataset.json" in str(caught.value)


def test_no_table_and_no_json(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"dataset\.json: no such file; expected the folder"):
        nnunet.read(tmp_path)
    (tmp_path / "dataset.json").write_text("{")
    with pytest.raises(SourceError, match="is not readable JSON"):
        nnunet.read(tmp_path)
    change(decathlon(tmp_path / "d"), training=["a.nii.gz"])
    with pytest.raises(SourceError, match="entry 0 of 'training' has no image and label"):
        nnunet.read(tmp_path / "d")
