"""Small data sets of volumes in the layouts of nnU-Net and of the Decathlon."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import nibabel
import numpy as np
import volumes

SIZE = (12, 10, 9)
SMALL = ["--stage-filters", "4", "4", "--epochs", "1"]
"""A small network, trained for one epoch."""


def nnunet(folder: Path, cases: int = 6, size: tuple[int, ...] = SIZE) -> Path:
    """The data set of `examples/volumes.py`, small, with a case to predict."""
    volumes.write(folder, cases, size)
    (folder / "imagesTs").mkdir()
    first = folder / "imagesTr" / "tubes_000_0000.nii.gz"
    shutil.copy(first, folder / "imagesTs" / "tubes_900_0000.nii.gz")
    return folder


def decathlon(folder: Path, cases: int = 6) -> Path:
    """Two channels in one file, listed in `dataset.json`."""
    listed = []
    for name in ("imagesTr", "labelsTr"):
        (folder / name).mkdir(parents=True)
    for case in range(cases):
        image, labels = volumes.draw(SIZE, np.random.default_rng(case))
        both = np.stack([image, -image], -1).transpose(2, 1, 0, 3)
        name, affine = f"BRATS_{case:03}.nii.gz", np.diag([0.8, 0.8, 1.5, 1])
        nibabel.save(nibabel.Nifti1Image(both, affine), folder / "imagesTr" / name)
        nibabel.save(nibabel.Nifti1Image(labels.T, affine), folder / "labelsTr" / name)
        listed.append({"image": f"./imagesTr/{name}", "label": f"./labelsTr/{name}"})
    about = {
        "name": "BRATS",
        "tensorImageSize": "4D",
        "modality": {"0": "FLAIR", "1": "T1w"},
        "labels": {"0": "background", "1": "edema", "2": "tumour"},
        "training": listed,
        "test": ["./imagesTs/BRATS_900.nii.gz"],
    }
    (folder / "dataset.json").write_text(json.dumps(about))
    return folder


def change(folder: Path, **entries: object) -> None:
    """Change entries of `dataset.json`; None removes one."""
    about = json.loads((folder / "dataset.json").read_text()) | entries
    about = {key: value for key, value in about.items() if value is not None}
    (folder / "dataset.json").write_text(json.dumps(about))
