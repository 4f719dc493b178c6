"""Data sets of volumes in the layout of nnU-Net: what is there, and whether images and labels fit each other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tfbig import SourceError, sources
from tfbig.cli.data import nnunet, prepared_volumes
from tfbig.cli.data.collection import Collection, Recipe
from tfbig.cli.data.collection_tables import Found, shortened
from tfbig.cli.data.nnunet import Case, VolumeSet
from tfbig.cli.data.prepared_volumes import KnownLabels
from tfbig.sources import Volume
from tfbig.sources.volumes.views import check_same_grid
from tfbig.units import counted


def read(folder: Path, seed: int) -> Found:
    """Check `dataset.json`, and the header and the labels of every case.

    The seed is that of the split that training draws.

    Raises:
        SourceError: `dataset.json` is missing or wrong, or there are no cases.
    """
    about = nnunet.read(folder)
    found = Found(folder=folder, missing=shortened(about.missing, "files"))
    found.there.append(
        f"{counted(len(about.cases), 'case')} with labels, {len(about.others)} to predict, channels "
        f"{', '.join(about.channels)}, classes {', '.join(about.classes)}"
    )
    usable: list[Volume] = []
    wrong: list[str] = []
    counts = np.zeros(len(about.classes), np.int64)
    for case in about.cases:
        try:
            volume, number = _checked(case, about)
        except SourceError as error:
            wrong.append(str(error))
        else:
            usable.append(volume)
            counts += number > 0
    found.missing += [f"usable case: {line}" for line in shortened(wrong, "cases")]
    found.there += _described(usable, about, counts.tolist())
    found.notes.append(
        f"training draws 70 % of the cases to train on, 10 % for validation and 20 % to test, with seed {seed}; the "
        "folds of nnU-Net (splits_final.json) are not used"
    )
    return found


def _checked(case: Case, about: VolumeSet) -> tuple[Volume, np.ndarray]:
    """Open the image of a case, and count the voxels of each class.

    Raises:
        SourceError: A file cannot be read, has another grid than the image, or holds an unknown label.
    """
    image = prepared_volumes.stacked(case.images, case.name, len(about.channels))
    assert case.labels is not None
    labels = sources.VolumeOnDisk(case.labels)
    check_same_grid(labels, image, "the image")
    known = KnownLabels(labels, len(about.classes))
    number = np.zeros(len(about.classes), np.int64)
    for plane in range(known.shape[0]):
        values = known.read(plane, plane + 1).astype(np.int64).ravel()
        number += np.bincount(values, minlength=len(number))
    image.read(image.shape[0] - 1, image.shape[0])  # decompresses it to its end
    return image, number


def _described(volumes: list[Volume], about: VolumeSet, counts: list[int]) -> Iterator[str]:
    """Yield lines on the size, spacing and orientation of volumes, and on the classes."""
    if not volumes:
        return
    shapes = np.array([volume.shape[:3] for volume in volumes])
    yield (
        f"voxels (planes x rows x columns): {_text(shapes.min(0))} to {_text(shapes.max(0))}, median "
        f"{_text(np.median(shapes, 0))}"
    )
    spacings = [volume.spacing for volume in volumes if volume.spacing is not None]
    if spacings:
        array = np.array(spacings)
        yield (
            f"spacing in mm: {_text(array.min(0))} to {_text(array.max(0))}, median {_text(np.median(array, 0))}"
        )
    kinds = Counter(volume.orientation or "unknown" for volume in volumes)
    yield "orientation: " + ", ".join(f"{name} {number}" for name, number in kinds.most_common())
    named = zip(about.classes, counts, strict=True)
    yield "cases with each class: " + ", ".join(f"{name} {number}" for name, number in named)


def _text(numbers: np.ndarray) -> str:
    return " x ".join(f"{number:.4g}" for number in numbers)


COLLECTION = Collection(
    about="volumes in the layout of nnU-Net, or of the Medical Segmentation Decathlon",
    expected=(
        "  dataset.json              channel_names, labels, file_ending; or of the Decathlon modality, labels, "
        "training\n"
        "  imagesTr/CASE_0000.nii.gz a file for each channel, _0000, _0001, ...; of the Decathlon CASE.nii.gz with "
        "all\n"
        "  labelsTr/CASE.nii.gz      labels 0, 1, ... on the grid of the image\n"
        "  imagesTs/CASE_0000.nii.gz optional, cases to predict"
    ),
    read=read,
    recipes=(
        Recipe("volumes-whole", "a 3-D U-Net on whole volumes"),
        Recipe("volumes-patches", "the same network on crops"),
    ),
)
