"""Settings of patches and inner steps, for both tasks of PatchGD."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tfbig.choices import FILLINGS, SCALES
from tfbig.cli.settings import value_types as types
from tfbig.cli.settings.flag import Conditions, flag


@dataclass(frozen=True, kw_only=True)
class PatchSettings:
    """Patches, and the inner steps of a training step."""

    SECTION = "patches"
    ONLY_IF: ClassVar[Conditions] = {"mode": ("patchgd",)}

    patch: int = flag(128, type=types.count, help="rows and columns of a patch, in pixels")
    sampling: int | float = flag(
        0.25,
        type=types.sampling,
        help="patches of an inner step: a share with a decimal point (0.25, 1.0), or a number (16)",
    )
    inner_steps: int | None = flag(
        type=types.count,
        help="inner steps of a step (default: until every patch was used)",
    )
    inner_accumulate: int | str = flag(
        "all",
        type=types.inner_steps,
        help="inner steps whose gradients are averaged: a number, or all",
    )
    encoder_scale: str = flag(
        "published",
        choices=SCALES,
        help="scale of the encoder's gradient",
    )
    filling_norm: str = flag(
        "published",
        choices=FILLINGS,
        help="BatchNormalization while Z is filled",
    )
    patches_at_once: int | None = flag(
        type=types.count,
        help="patches that the encoder processes at once, over all images of a step (default: all)",
        trains=False,
    )
