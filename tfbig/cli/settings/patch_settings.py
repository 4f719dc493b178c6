"""Settings of patches and inner steps, for both tasks of PatchGD."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from tfbig.choices import FILLINGS, SCALES
from tfbig.cli import paths
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


def check_steps(settings: Any) -> None:
    """Check that the optimizer steps once in a step, where other flags need that.

    Raises:
        FlagError: It does not.
    """
    if settings.inner_accumulate == "all":
        return
    needs = {
        "--accumulate": settings.accumulate > 1 and "averages gradients over steps",
        "--strategy": settings.strategy != "none" and "adds up gradients of replicas in each step",
    }
    for name, reason in needs.items():
        if reason:
            raise paths.FlagError(
                f"{name} {getattr(settings, name[2:])}: {reason}, but with --inner-accumulate "
                f"{settings.inner_accumulate} the optimizer steps within each. Use --inner-accumulate all."
            )
