"""Volumes of a run: tables, splits, crops and what is skipped."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import nibabel
import nrrd
import numpy as np
import pytest
from volume_files import samples, write_nifti, write_series
from volume_sets import SIZE, decathlon, nnunet

import train
from tfbig.cli.data import volume_cases
from tfbig.cli.data.prepared_volumes import Preparation
from tfbig.cli.data.run_data import Data
from tfbig.cli.data.volume_cases import LabelledVolume
from tfbig.cli.paths import FlagError
from tfbig.errors import SourceError
from tfbig.sources import ArrayVolume

PREPARATION = Preparation("SAR", stride=(2, 2, 2))


def load(folder: Path, *flags: str) -> Data:
    argv = ["--task", "volume-segmentation", "--data", str(folder), *flags]
    return volume_cases.load(train.settings_of(argv))


def channels(data: Data) -> int:
    (count,) = {volume.image.shape[3] for volume in data.every}
    return count


def array(volume: Any) -> np.ndarray:
    return volume.read(0, volume.shape[0])


def test_a_data_set_of_nnunet(tmp_path: Path) -> None:
    data = load(nnunet(tmp_path))
    assert [len(part.items) for part in (data.train, data.val, data.test)] == [4, 1, 1]
    assert (data.classes, channels(data)) == (("background", "artery", "vein"), 1)
    assert data.decided == {"class_names": data.classes, "orientation": "SAR"}
    first = data.train.items[0]
    path = tmp_path / "imagesTr" / f"{first.name}_0000.nii.gz"
    stored = np.asarray(nibabel.load(path).dataobj).T.astype("float64")
    expected = (stored - stored.mean()) / stored.std()
    np.testing.assert_allclose(array(first.image)[..., 0], expected, rtol=1e-5, atol=1e-5)
    label_path = tmp_path / "labelsTr" / f"{first.name}.nii.gz"
    np.testing.assert_array_equal(
        array(first.labels)[..., 0], np.asarray(nibabel.load(label_path).dataobj).T
    )
    assert {row["split"] for row in data.table} == {"train", "val", "test"}


def test_several_channels_in_one_file(tmp_path: Path) -> None:
    data = load(decathlon(tmp_path), "--orientation", "stored")
    assert channels(data) == 2 and data.decided["orientation"] == "stored"
    values = array(data.train.items[0].image)
    np.testing.assert_allclose(values[..., 0], -values[..., 1], atol=1e-5)


def volumes_of(data: Data) -> list[LabelledVolume]:
    return data.every


def table(folder: Path, **columns: list[str]) -> None:
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    with (folder / "volumes.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, [*columns])
        writer.writeheader()
        writer.writerows(rows)


NAMES = ["--class-names", "background", "artery", "vein"]


def test_table(tmp_path: Path) -> None:
    nnunet(tmp_path)
    images = [f"imagesTr/tubes_{n:03}_0000.nii.gz" for n in range(4)]
    labels = [f"labelsTr/tubes_{n:03}.nii.gz" for n in range(4)]
    table(tmp_path, image=images, label=labels, split=["train", "train", "val", "test"])
    data = load(tmp_path, *NAMES)
    assert [volume.name for volume in data.train.items] == ["tubes_000_0000", "tubes_001_0000"]
    table(
        tmp_path,
        case_id=[*"abcd"],
        image_0=images,
        image_1=images,
        label=labels,
        split=["train", "train", "val", "test"],
    )
    data = load(tmp_path, *NAMES)
    assert (channels(data), data.test.items[0].name) == (2, "d")
    with pytest.raises(FlagError, match="--class-names is missing"):
        load(tmp_path)
    table(tmp_path, picture=images, mask=labels)
    wanted = (
        r"line 1: has no column 'image' or 'image_\*' and no column 'label'; expected a table with"
    )
    with pytest.raises(SourceError, match=wanted):
        load(tmp_path, *NAMES)
    table(tmp_path, image=["x.nii", *images[1:]], label=labels, split=["train"] * 3 + ["val"])
    data = load(tmp_path, *NAMES)
    assert [volume.name for volume in data.train.items] == ["tubes_001_0000", "tubes_002_0000"]
    ((name, reason),) = data.failed
    assert name == "x"
    assert reason.startswith(f"{tmp_path / 'volumes.csv'}: line 2: no such file ")


@pytest.mark.parametrize("case", ["../victim/a", "/tmp/victim", "a\\b", "..", "x" * 256])
def test_names_of_cases_are_no_paths(case: str, tmp_path: Path) -> None:
    """Pictures of a case get its name."""
    nnunet(tmp_path)
    images = [f"imagesTr/tubes_{n:03}_0000.nii.gz" for n in range(3)]
    labels = [f"labelsTr/tubes_{n:03}.nii.gz" for n in range(3)]
    split = ["train", "val", "test"]
    table(tmp_path, case_id=["a", case, "c"], image=images, label=labels, split=split)
    with pytest.raises(SourceError, match=r"volumes.csv: line 3: case_id: '.*' cannot be the name"):
        load(tmp_path, *NAMES)


def test_what_cannot_be_used_is_skipped_with_its_reason(tmp_path: Path) -> None:
    nnunet(tmp_path, cases=10)
    labels = tmp_path / "labelsTr"
    write_nifti(labels / "tubes_001.nii.gz", np.zeros((3, 3, 3), "uint8"))
    write_nifti(labels / "tubes_002.nii.gz", np.zeros(SIZE, "uint8"), np.diag([-0.8, 0.8, 1.5, 1]))
    (tmp_path / "imagesTr" / "tubes_003_0000.nii.gz").write_bytes(b"")
    last = load(tmp_path).train.items[-1].name
    affine = nibabel.load(labels / f"{last}.nii.gz").affine
    both = nibabel.Nifti1Image(np.zeros((*SIZE[::-1], 2), "float32"), affine)
    nibabel.save(both, tmp_path / "imagesTr" / f"{last}_0000.nii.gz")
    data = load(tmp_path)
    reasons = dict(data.failed)
    assert "is 3 x 3 x 3 voxels; expected 12 x 10 x 9, those of the image" in reasons["tubes_001"]
    assert "orientations SAL and SAR); expected the same affine" in reasons["tubes_002"]
    assert (
        "is damaged or truncated" in reasons["tubes_003"] or "not a NIfTI" in reasons["tubes_003"]
    )
    assert "holds 2 channels, others 1; expected as many in each" in reasons[last]
    assert not any("\n" in reason for reason in reasons.values())


def test_the_first_training_volume_that_opens_decides_the_orientation(tmp_path: Path) -> None:
    nnunet(tmp_path)
    data = load(tmp_path)
    (tmp_path / "imagesTr" / f"{data.train.items[0].name}_0000.nii.gz").write_bytes(b"")
    assert load(tmp_path).decided == data.decided
    for path in (tmp_path / "imagesTr").iterdir():
        path.write_bytes(b"")
    with pytest.raises(SourceError, match="none of the volumes in split 'train' can be used"):
        load(tmp_path)


def test_volumes_in_another_orientation_are_turned(tmp_path: Path) -> None:
    """The same voxels of the patient, stored with another order of axes, are read alike."""
    nnunet(tmp_path)
    before = {v.name: (array(v.image), array(v.labels)) for v in volumes_of(load(tmp_path))}
    for name in ("imagesTr/tubes_002_0000", "labelsTr/tubes_002"):
        image = nibabel.load(tmp_path / f"{name}.nii.gz")
        image = nibabel.Nifti1Image(np.asarray(image.dataobj), image.affine)
        nibabel.save(image.as_reoriented([[2, -1], [0, 1], [1, 1]]), tmp_path / f"{name}.nii.gz")
    after = volumes_of(load(tmp_path))
    for volume in after:
        image, labels = before[volume.name]
        np.testing.assert_allclose(array(volume.image), image, atol=1e-5)
        np.testing.assert_array_equal(array(volume.labels), labels)
    shapes = {volume.name: volume.stored.shape[:3] for volume in after}
    assert shapes["tubes_002"] != shapes["tubes_001"] == SIZE


def test_crops(tmp_path: Path) -> None:
    data = load(nnunet(tmp_path))
    draw = volume_cases.draw
    crops = draw(data.train.items, (4, 16, 2), 8, [0, 1], PREPARATION)
    assert {crop.image.shape for crop in crops} == {(4, 16, 2, 1)}
    again = draw(data.train.items, (4, 16, 2), 8, [0, 1], PREPARATION)
    for one, other in zip(crops, again, strict=True):
        np.testing.assert_array_equal(array(one.image), array(other.image))
        assert not array(one.labels)[:, 10:].any() and not array(one.image)[:, 10:].any()  # padding
    centred = draw(data.train.items, (2, 2, 2), 20, [0], PREPARATION, foreground=1.0)
    assert all(array(crop.labels).any() for crop in centred)
    part = (SIZE[0], SIZE[1] - 1, SIZE[2] - 1)
    for crop in draw(data.train.items, part, 20, [0], PREPARATION, foreground=1.0):
        assert array(crop.image).shape[:3] == part  # labels near the end move the crop inside
    mirrored = draw(data.train.items, None, 4, [0], PREPARATION, mirror=True)
    plain = draw(data.train.items, None, 4, [0], PREPARATION)
    assert (
        {v.name for v in mirrored} == {v.name for v in plain} == {v.name for v in data.train.items}
    )
    for volume in mirrored:
        (same,) = (v for v in plain if v.name == volume.name)
        ours, theirs = (
            np.concatenate([array(v.image), array(v.labels)], -1) for v in (volume, same)
        )
        assert any(
            np.array_equal(np.flip(ours, axes), theirs)
            for axes in [(), (0,), (1,), (2,), (0, 1), (0, 2), (1, 2), (0, 1, 2)]
        )


def test_whole_volumes_are_padded() -> None:
    rng = np.random.default_rng(0)
    volume = ArrayVolume(rng.normal(size=(5, 6, 7)).astype("float32"))
    labelled = volume_cases.LabelledVolume("a", volume, volume, volume, volume)
    padded = volume_cases.whole(labelled, Preparation(window=(0.0, 1.0), stride=(4, 4, 4)))
    assert padded.image.shape == padded.labels.shape == (8, 8, 8, 1)
    assert array(padded.image)[5:].max() == -1 and not array(padded.labels)[5:].any()


def test_missing_data(tmp_path: Path) -> None:
    with pytest.raises(FlagError, match="--data FOLDER is missing"):
        volume_cases.load(train.settings_of(["--task", "volume-segmentation"]))
    with pytest.raises(SourceError, match=r"dataset\.json: no such file"):
        load(tmp_path)
    nnunet(tmp_path)
    with pytest.raises(FlagError, match="the first number must be below the second"):
        load(tmp_path, "--intensity-window", "5", "5")
    with pytest.raises(FlagError, match="2 names; expected 3"):
        load(tmp_path, "--class-names", "a", "b")


def test_confine_sees_the_files_that_headers_and_folders_name(tmp_path: Path) -> None:
    data, other = tmp_path / "data", tmp_path / "other"
    write_series(data / "series", samples())
    other.mkdir()
    nrrd.write(str(other / "x.nhdr"), samples().T)
    table = data / "volumes.csv"
    table.write_text("image,label\nseries,series\n")
    flags = "--class-names", "a", "b", "--confine"
    with pytest.raises(SourceError, match="--confine") as allowed:
        (data / "series" / "more.dcm").symlink_to(other / "x.raw.gz")
        load(data, *flags)
    assert "more.dcm: lies outside of" in str(allowed.value)
    (data / "series" / "more.dcm").unlink()
    (data / "link").symlink_to(other)
    (other / "y.nhdr").symlink_to(data / "z.nhdr")
    (data / "z.nhdr").write_bytes((other / "x.nhdr").read_bytes())
    table.write_text("image,label\nlink/y.nhdr,link/y.nhdr\n")
    with pytest.raises(SourceError, match=r"x\.raw\.gz: lies outside of"):
        load(data, *flags)
