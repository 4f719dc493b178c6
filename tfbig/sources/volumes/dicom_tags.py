"""What DICOM attributes say about values beyond size and place: each is applied, refused or passed over."""

from __future__ import annotations

from typing import Any, Final

from tfbig.sources.rules import Rule

MEASURED: Final = frozenset({"CT", "PT"})
"""Modalities whose rescaled values are measurements, however they are shown."""


ATTRIBUTES: Final = (
    Rule("RescaleSlope, RescaleIntercept", "applied, also where they differ from plane to plane"),
    Rule(
        "PhotometricInterpretation MONOCHROME1, PresentationLUTShape INVERSE",
        "applied: values are inverted, so that bright is large; those of CT, PET and in Hounsfield units are "
        "measurements, and stay",
    ),
    Rule("PhotometricInterpretation YBR", "applied: colours are read as RGB"),
    Rule("PhotometricInterpretation PALETTE COLOR", "refused"),
    Rule("ModalityLUTSequence", "refused"),
    Rule("PixelPaddingValue", "passed over: padding keeps its value"),
    Rule(
        "WindowCenter, VOILUTSequence, PresentationLUTSequence", "passed over: for the display only"
    ),
    Rule("ImageType LOCALIZER", "the file is passed over, and said"),
    Rule(
        "the preamble of a file",
        "not needed; files that are no DICOM images are passed over, and said",
    ),
)
"""What is done with the attributes that change values, or the choice of planes."""


def refused(data: Any) -> str:
    """Say why the values of a file are not what is stored; empty if they are."""
    if data.get("PhotometricInterpretation") == "PALETTE COLOR":
        return "its samples are numbers of colours (PALETTE COLOR). Export it in gray or RGB."
    if data.get("ModalityLUTSequence"):
        return (
            "its values are in a table (ModalityLUTSequence), which is not applied. Export it with RescaleSlope and "
            "RescaleIntercept."
        )
    return ""


def inverted(data: Any, scaling: tuple[float, float]) -> tuple[float, float]:
    """The slope and intercept of values where bright is large.

    A stored sample s of n bits stands for 2^n - 1 - s if black and white are exchanged, and for -1 - s if it is signed.
    """
    inverse = (
        data.get("PhotometricInterpretation") == "MONOCHROME1"
        or data.get("PresentationLUTShape") == "INVERSE"
    )
    if not inverse or data.get("Modality") in MEASURED or data.get("RescaleType") == "HU":
        return scaling
    slope, intercept = scaling
    signed = data.get("PixelRepresentation")
    bits = int(data.get("BitsStored") or data.get("BitsAllocated", 16))
    top = 0 if signed is None else -1 if signed else 2**bits - 1
    return -slope, slope * top + intercept
