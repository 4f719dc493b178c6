"""Small volumes in files of every format."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pydicom
from pydicom.uid import ExplicitVRBigEndian, ExplicitVRLittleEndian, generate_uid

SIZE = (5, 6, 7)
"""Planes, rows and columns."""
OBLIQUE = np.array(
    [[-0.8, 0, 0.1, 10.0], [0, -0.9, 0.2, 20.0], [0, 0.05, 3.0, -30.0], [0, 0, 0, 1.0]]
)
"""Affine of columns, rows and planes, as NIfTI has it."""


def samples(dtype: str = "int16", shape: tuple[int, ...] = SIZE, seed: int = 0) -> np.ndarray:
    """Random samples `[D, H, W]`."""
    return np.random.default_rng(seed).integers(-1000, 2000, shape).astype(dtype)


def write_nifti(
    path: Path, array: np.ndarray, affine: Any = OBLIQUE, kind: Any = nibabel.Nifti1Image
) -> Path:
    """Write `[D, H, W]` or `[D, H, W, C]` with nibabel."""
    axes = (2, 1, 0, 3)[: array.ndim]
    nibabel.save(kind(array.transpose(axes), affine), path)
    return path


def write_series(
    folder: Path,
    array: np.ndarray,
    step: float = 2.5,
    slopes: Any = None,
    big: bool = False,
    shuffle: bool = True,
) -> Path:
    """Write `[D, H, W]` as a DICOM series of CT, the files in another order than the planes."""
    folder.mkdir(parents=True, exist_ok=True)
    names = np.random.default_rng(1).permutation(len(array)) if shuffle else range(len(array))
    series, study = generate_uid(), generate_uid()
    for plane, (number, pixels) in enumerate(zip(names, array, strict=True)):
        data = dataset(pixels, big)
        data.SeriesInstanceUID, data.StudyInstanceUID = series, study
        data.ImagePositionPatient = [-100.0, -90.0, -50.0 + step * plane]
        data.ImageOrientationPatient = [1, 0, 0, 0, 1, 0]
        data.PixelSpacing, data.SliceThickness = [0.7, 0.6], 5.0
        data.InstanceNumber = int(number) + 1
        data.RescaleSlope = 1 if slopes is None else slopes[plane]
        data.RescaleIntercept = -1024
        data.save_as(folder / f"IM{number:03}.dcm", enforce_file_format=True)
    return folder


def dataset(pixels: np.ndarray, big: bool = False) -> Any:
    """Return a DICOM data set with an image, and no geometry."""
    data = pydicom.Dataset()
    data.file_meta = pydicom.dataset.FileMetaDataset()
    data.file_meta.TransferSyntaxUID = ExplicitVRBigEndian if big else ExplicitVRLittleEndian
    data.SOPClassUID = "1.2.840.10008.5.1.4.1.1.2"
    data.SOPInstanceUID = generate_uid()
    data.Modality = "CT"
    data.Rows, data.Columns = pixels.shape[-2:]
    data.SamplesPerPixel, data.PhotometricInterpretation = 1, "MONOCHROME2"
    data.BitsAllocated = data.BitsStored = 8 * pixels.dtype.itemsize
    data.HighBit = data.BitsStored - 1
    data.PixelRepresentation = int(pixels.dtype.kind == "i")
    if pixels.ndim == 3:
        data.NumberOfFrames = len(pixels)
    stored = pixels.astype(pixels.dtype.newbyteorder(">" if big else "<"))
    data.add_new("PixelData", "OW", stored.tobytes())
    return data
