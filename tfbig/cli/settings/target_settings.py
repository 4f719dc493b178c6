"""Settings of what `--task mil` and `images` predict: a class, survival, a number or several labels."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from tfbig.cli import paths
from tfbig.cli.settings import choices, data_kinds
from tfbig.cli.settings import value_types as types
from tfbig.cli.settings.flag import flag

BINS = 4
"""Default number of bins of time."""
DISCRETE = {"survival_loss": ("discrete",)}


@dataclass(frozen=True, kw_only=True)
class TargetSettings:
    """The target of a bag or an image."""

    SECTION = "data"

    target: str = flag(
        "class",
        choices={
            "class": "label",
            "survival": "time and event (1, or 0 if the case was censored), one pair for all slides of a case_id",
            "regression": "value",
            "multilabel": "label_NAME with 0, 1 or nothing for each NAME",
        },
        help="what is predicted, and the columns of the table",
    )
    survival_loss: str = flag(
        "discrete",
        choices={
            "discrete": "likelihood of hazards in bins of time",
            "cox": "partial likelihood of Cox's model over risk sets of --accumulate bags or images, exact by two "
            "passes over each set; with --mode patchgd a batch is a risk set",
        },
        help="loss of survival",
        only_if={"target": ("survival",)},
    )
    time_bins: int = flag(
        BINS,
        type=types.two_or_more,
        metavar="N",
        only_if=DISCRETE,
        help="bins of time, which hold equal numbers of events of the training set ",
    )
    time_cuts: tuple[float, ...] | None = flag(
        nargs="+",
        type=types.positive,
        metavar="TIME",
        only_if=DISCRETE,
        help="times that separate the bins, instead of --time-bins (default: quantiles of the training set)",
    )
    alpha: float = flag(
        0.0,
        type=types.share,
        only_if=DISCRETE,
        help="count censored cases less by this share, 0 to 1",
    )
    value_scale: tuple[float, float] | None = flag(
        nargs=2,
        type=float,
        metavar=("MEAN", "DEVIATION"),
        only_if={"target": ("regression",)},
        help="mean and standard deviation by which values are scaled while training (default: "
        "those of the training set)",
    )


DECIDED = ("time_cuts", "value_scale", "class_names")
"""Settings that the training set decides, which a prediction takes from the run."""
_BY_CLASS = ("clam_sb", "clam_mb", "dsmil", "dtfd")
"""Models with a loss of classes beside that of the bag."""


def check(settings: Any) -> None:
    """Check that the settings of `--task mil` or `images` fit its target.

    Raises:
        FlagError: A flag is of another target, or cannot be combined with this one.
    """
    target = f"--target {settings.target}"
    monitors = choices.MONITORS[settings.target]
    if settings.monitor not in monitors:
        raise paths.FlagError(
            f"--monitor {settings.monitor}: {target} has {' and '.join(monitors)}. Choose one of these."
        )
    if settings.value_scale and not settings.value_scale[1] > 0:
        raise paths.FlagError(
            f"--value-scale: the deviation is {settings.value_scale[1]:g}, expected a number above 0."
        )
    if settings.target == "class":
        return
    _check_items(settings, target)
    if settings.survival_loss == "cox":
        _check_cox(settings)
    elif settings.time_cuts and settings.time_bins not in (BINS, len(settings.time_cuts) + 1):
        raise paths.FlagError(
            f"--time-cuts: {len(settings.time_cuts)} times make {len(settings.time_cuts) + 1} bins, but --time-bins is "
            f"{settings.time_bins}. Leave one of them out."
        )


def _check_items(settings: Any, target: str) -> None:
    """Check that bags or images, and what is done with them, do not need classes."""
    bags = settings.task == "mil"
    tables = [name for name, each in data_kinds.KINDS["images"].items() if each.is_table]
    if not bags and settings.images not in tables:
        raise paths.FlagError(
            f"--images {settings.images}: are of known classes, but {target} needs a table. Use --images "
            f"{' or '.join(tables)}."
        )
    if bags and settings.model in _BY_CLASS:
        raise paths.FlagError(
            f"--model {settings.model}: has a second loss of classes, and {target} has none. Use another --model."
        )


def _check_cox(settings: Any) -> None:
    loss = "--survival-loss cox"
    _refuse(settings, ("sum",), f"cannot be combined with {loss}. Leave it out.")
    if settings.mode == "patchgd":
        _check_batches(settings, loss)
        return
    if settings.strategy == "mirrored":
        raise paths.FlagError(
            f"--strategy mirrored: the devices of one process would compute a risk set of {loss} one after the other. "
            "Use --strategy multiworker with a process for each device, or --devices."
        )
    if settings.sync_norm:
        raise paths.FlagError(
            f"--sync-norm: workers compute the members of a risk set of {loss} at different times. Leave it out."
        )
    item = "bag" if settings.task == "mil" else "image"
    if settings.batch_size != 1:
        raise paths.FlagError(
            f"--batch-size {settings.batch_size}: {loss} computes one {item} at a time, expected 1. Set the size of a "
            "risk set by --accumulate."
        )
    if settings.accumulate < 2 and not settings.test_only:
        raise paths.FlagError(
            f"--accumulate {settings.accumulate}: is the number of {item}s of a risk set of {loss}, expected 2 or "
            "more, such as 32. Raise it."
        )


def _check_batches(settings: Any, loss: str) -> None:
    """Check that a batch is a risk set."""
    if settings.strategy != "none":
        raise paths.FlagError(
            f"--strategy {settings.strategy}: with --mode patchgd and {loss}, each worker would have risk sets of its "
            "own. Leave it out."
        )
    if settings.accumulate != 1:
        raise paths.FlagError(
            f"--accumulate {settings.accumulate}: with --mode patchgd a batch is a risk set of {loss}, expected 1. Set "
            "the size of a risk set by --batch-size."
        )
    if settings.batch_size < 2 and not settings.test_only:
        raise paths.FlagError(
            f"--batch-size {settings.batch_size}: with --mode patchgd a batch is a risk set of {loss}, expected 2 or "
            "more images of one size. Raise it, and scale images with --side."
        )


def _refuse(settings: Any, names: tuple[str, ...], reason: str) -> None:
    """Raise for a flag that is not at its default."""
    defaults = {each.name: each.default for each in fields(settings)}
    for name in names:
        if name in defaults and getattr(settings, name) != defaults[name]:
            raise paths.FlagError(f"--{name.replace('_', '-')}: {reason}")
