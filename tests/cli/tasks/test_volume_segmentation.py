"""`--task volume-segmentation` from the command line: train and predict."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest
from cli_runs import metrics, predictions
from volume_files import write_series
from volume_sets import SMALL, decathlon, nnunet

import tfbig
from tfbig.cli.data import volume_cases
from tfbig.cli.main import main
from tfbig.cli.settings import training
from tfbig.cli.tasks.volume_segmentation import VolumeSegmentation
from tfbig.results import slide_viewer

WHOLE = ["--crop", "whole", "--quiet", *SMALL]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("augment", ["none", "mirror"])
def test_crops_are_mirrored_as_said(
    augment: str, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nnunet(here / "set")
    argv = ["--task", "volume-segmentation", "--data", "set", "--augment", augment, *SMALL]
    settings = training.parse([*argv, "--crop", "4x8x8"])
    task = VolumeSegmentation()
    drawn: list[Any] = []

    def draws(*arguments: Any) -> list[Any]:
        drawn.append(arguments)
        return []

    def drawing(settings: Any, data: Any, draw: Any) -> list[Any]:
        return draw([0, 1])

    monkeypatch.setattr(volume_cases, "draw", draws)
    monkeypatch.setattr(task, "epochs_of", drawing)
    task.training(settings, task.load(settings))
    (arguments,) = drawn
    assert arguments[-2:] == (settings.foreground, augment == "mirror")


@pytest.mark.slow
def test_whole_volumes(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nnunet(here / "set")
    argv = ["train", "--task", "volume-segmentation", "--data", "set", "--out", "run", *WHOLE]
    assert main(argv) == 0
    output = capsys.readouterr().out
    assert (
        "training on all of tubes_" in output
        and "Plan for an image of 1 x 12 x 10 x 10 x 1" in output
    )
    run = here / "run"
    (row,) = predictions(run)
    assert {"volume", "dice", "dice_artery", "dice_vein"} <= row.keys()
    assert float(row["dice"]) == pytest.approx(metrics(run)["test_dice"])
    assert (run / f"{row['volume']}.png").read_bytes().startswith(b"\x89PNG")
    (view,) = slide_viewer.read_views(run)
    assert view.title.startswith(f"{row['volume']}: Dice")
    assert [layer.name for layer in view.overlays] == ["labels", "prediction"]
    assert "<h2>Volumes</h2>" in (run / "report.html").read_text()
    assert metrics(run)["tested_on"] == "test"
    assert main(["predict", "run", "set/imagesTs", "--out", "predicted", "--quiet"]) == 0
    image, mask = (
        nibabel.load(here / name)
        for name in ("set/imagesTs/tubes_900_0000.nii.gz", "predicted/tubes_900.nii.gz")
    )
    assert mask.shape == image.shape and mask.get_data_dtype() == np.uint8
    np.testing.assert_array_equal(mask.affine, image.affine)
    for name in ("pixdim", "sform_code", "qform_code", "xyzt_units"):
        np.testing.assert_array_equal(mask.header[name], image.header[name])
    (row,) = predictions(here / "predicted")
    (view,) = slide_viewer.read_views(here / "predicted")
    assert [layer.name for layer in view.overlays] == ["prediction"]
    assert "<h2>Volumes</h2>" in (here / "predicted" / "report.html").read_text()
    counts = np.bincount(np.asarray(mask.dataobj).ravel(), minlength=3)
    names = ("background", "artery", "vein")
    assert [int(row[f"voxels_{name}"]) for name in names] == counts.tolist()
    assert float(row["ml_vein"]) == pytest.approx(counts[2] * 1.5 * 0.8 * 0.8 / 1000)
    # a tenth of the memory, and the voxels of the plain model: the same mask
    plain = tfbig.cli.load_model.load(run / "model.keras")  # type: ignore[attr-defined]
    volume = tfbig.open("set/imagesTs/tubes_900_0000.nii.gz")
    values = volume.read(0, 12).astype("float64")
    values = ((values - values.mean()) / values.std()).astype("float32")
    logits = plain.predict(np.pad(values, [(0, 0), (0, 0), (0, 1), (0, 0)])[None], verbose=0)[0]
    expected = logits[:, :, :9].argmax(-1)
    assert (expected != np.asarray(mask.dataobj).T).mean() < 1e-3  # ties of float32 sums
    small = ["--device-memory", "300KB", "--out", "small", "--quiet"]
    assert main(["predict", "run", "set/imagesTs", *small]) == 0
    again = nibabel.load(here / "small" / "tubes_900.nii.gz")
    assert (np.asarray(again.dataobj) != np.asarray(mask.dataobj)).mean() < 1e-3


@pytest.mark.slow
def test_crops_of_two_channels_at_a_spacing(here: Path) -> None:
    decathlon(here / "set")
    flags = [
        "--spacing",
        "1.5",
        "1.6",
        "1.6",
        "--crop",
        "4x4x6",
        "--crops",
        "4",
        "--batch-size",
        "2",
    ]
    argv = ["train", "--task", "volume-segmentation", "--data", "set", "--out", "run", *flags]
    assert main([*argv, *SMALL, "--quiet", "--mode", "device"]) == 0
    assert metrics(here / "run")["volumes"] == 1
    assert (
        main(
            [
                *argv[: -len(flags)],
                *flags,
                *SMALL,
                "--quiet",
                "--resume",
                "--mode",
                "offload",
                "--epochs",
                "2",
            ]
        )
        == 0
    )
    image = "set/imagesTr/BRATS_001.nii.gz"
    assert main(["predict", "run", image, "--out", "predicted", "--quiet"]) == 0
    mask = nibabel.load(here / "predicted" / "BRATS_001.nii.gz")
    assert mask.shape == nibabel.load(image).shape[:3]
    np.testing.assert_array_equal(mask.affine, nibabel.load(image).affine)


@pytest.mark.slow
def test_other_files_and_errors(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nnunet(here / "set")
    shutil.rmtree(here / "set" / "imagesTs")
    argv = ["train", "--task", "volume-segmentation", "--data", "set", "--out", "run", *WHOLE]
    assert main(argv) == 0
    array = np.random.default_rng(0).integers(0, 200, (6, 10, 9)).astype("int16")
    write_series(here / "study" / "ct", array)
    write_series(here / "study" / "gap", array)
    next((here / "study" / "gap").glob("*2.dcm")).unlink()
    both = np.zeros((9, 10, 6, 2), "int16")
    nibabel.save(nibabel.Nifti1Image(both, np.eye(4)), here / "study" / "both.nii")
    nibabel.save(nibabel.Nifti1Image(both[..., :1, 0], np.eye(4)), here / "study" / "thin.nii.gz")
    capsys.readouterr()
    assert main(["predict", "run", "study", "--out", "out", "--quiet"]) == 3
    output = capsys.readouterr()
    assert {path.name for path in (here / "out").glob("*.nii.gz")} == {"ct.nii.gz", "thin.nii.gz"}
    mask = nibabel.load(here / "out" / "ct.nii.gz")
    expected = tfbig.open(here / "study" / "ct").affine[:, [2, 1, 0, 3]]
    np.testing.assert_allclose(mask.affine, expected, rtol=1e-6)
    assert "holds 2 channels; expected one volume. Take one time of a series" in output.err
    assert "1 planes are missing" in output.err or "planes are missing" in output.err
    assert main(["train", "--task", "segmentation", "--data", "set", "--dry-run"]) in (1, 2)
    assert (
        "is a data set of volumes; expected slides. Use --task volume-segm"
        in capsys.readouterr().err
    )
    assert main(["predict", "run", "set/labelsTr/dataset.json", "--out", "out2"]) in (1, 2)
    (here / "empty").mkdir()
    assert main(["predict", "run", "empty", "--out", "out2"]) == 1
    assert "holds no volumes (.nhdr, .nii, .nii.gz, .nrrd, DICOM)" in capsys.readouterr().err


@pytest.mark.slow
def test_a_wrong_label_stops_with_its_name(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nnunet(here / "set")
    for path in (here / "set" / "labelsTr").iterdir():
        image = nibabel.load(path)
        nibabel.save(nibabel.Nifti1Image(np.asarray(image.dataobj) + 3, image.affine), path)
    argv = ["train", "--task", "volume-segmentation", "--data", "set", "--out", "run", *WHOLE]
    assert main([*argv, "--strict"]) == 1
    error = capsys.readouterr().err
    assert "has the label 3; expected 0 to 2" in error and "Traceback" not in error
