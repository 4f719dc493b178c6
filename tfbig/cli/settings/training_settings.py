"""Settings of the training and evaluation of all tasks, and of classifiers."""

from __future__ import annotations

from dataclasses import dataclass

from tfbig.cli.settings import choices
from tfbig.cli.settings import value_types as types
from tfbig.cli.settings.flag import PLACE, TUNABLE, flag


def epochs_flag(default: int) -> int:
    """Return the field of the flag `--epochs`."""
    help_text = "number of epochs"
    field: int = flag(default, kind=TUNABLE, type=types.count, help=help_text)
    return field


def batch_size_flag(default: int, batch: str) -> int:
    """Return the field of the flag `--batch-size`.

    Args:
        default: Default.
        batch: What a batch contains.
    """
    help_text = f"{batch}"
    field: int = flag(default, kind=TUNABLE, type=types.count, help=help_text)
    return field


def channels_flag(default: float, what: str, networks: str) -> float | tuple[float, ...] | None:
    """Return the field of a flag with one number, or one for each channel.

    Args:
        default: Number without `--encoder-weights`.
        what: What the numbers are.
        networks: Networks that use them.
    """
    help_text = (
        f"{what} of each channel divided by 255, for {networks} (default: {default}; of --encoder-weights imagenet or "
        "RUN, theirs; a FILE needs it)"
    )
    field: float | tuple[float, ...] | None = flag(type=float, nargs="+", help=help_text)
    return field


def encoder_weights_flag() -> str | None:
    """Return the field of the flag `--encoder-weights`."""
    field: str | None = flag(
        exists="file or folder",
        kind=PLACE,
        path=True,
        words=(choices.IMAGENET, choices.RANDOM),
        metavar="imagenet|random|FILE|RUN",
        help="initial weights of the encoder: imagenet, published ones, fetched once; a FILE with the names of "
        "torchvision or timm (.safetensors, .npz, .h5, .pth), or of tfbig (.weights.h5, .keras); or the folder of a "
        "RUN with the same encoder (default: random, or those of the recipe)",
    )
    return field


@dataclass(frozen=True, kw_only=True)
class OptimizerSettings:
    """Epochs, batches and the optimizer."""

    SECTION = "training"

    epochs: int = epochs_flag(10)
    batch_size: int = batch_size_flag(1, "bags of a step, all of the same size")
    accumulate: int = flag(
        1,
        kind=TUNABLE,
        type=types.count,
        help="number of steps whose gradients are averaged before the optimizer steps",
    )
    sum: bool = flag(
        False, help="sum the gradients of --accumulate steps instead of averaging them"
    )
    optimizer: str = flag("adam", choices=choices.OPTIMIZERS, help="optimizer")
    lr: float = flag(1e-3, kind=TUNABLE, type=types.positive, help="learning rate")
    epsilon: float = flag(
        1e-7,
        type=types.positive,
        help="epsilon of adam and coupled_adam",
    )
    beta_1: float = flag(
        0.9,
        type=types.share,
        help="decay of the average of the gradient, of all optimizers",
    )
    decay: float = flag(
        0.0,
        type=float,
        help="weight decay; in coupled_adam and demon_adam an L2 penalty",
    )
    clip: float | None = flag(
        type=types.from_zero,
        help="clip the global norm of the gradient to this value; 0 for no clipping (default: no clipping)",
    )


@dataclass(frozen=True, kw_only=True)
class ScheduleSettings:
    """Learning rate over the epochs."""

    SECTION = "training"

    schedule: str = flag(
        "cosine",
        choices=choices.SCHEDULES,
        help="schedule of the learning rate; changes after every epoch, with step-cosine, linear or --warmup after "
        "every step; a cosine decreases to 0, linear to half",
    )
    warmup: float | None = flag(
        type=types.positive,
        help="epochs in which the learning rate increases from 0, e.g. 2 (default: none)",
    )
    rate: float = flag(
        0.955,
        type=types.positive,
        help="factor per epoch of --schedule exponential",
    )
    demon_steps: int | None = flag(
        type=types.count,
        help="steps after which the momentum of demon_adam and demon_adamw is 0 (default: the steps of the run)",
    )


@dataclass(frozen=True, kw_only=True)
class OrderSettings:
    """Order of the images or bags."""

    SECTION = "training"

    like_sizes: bool = flag(
        False,
        help="put images or bags of similar size next to each other, so that workers of a round wait less for each "
        "other",
    )


@dataclass(frozen=True, kw_only=True)
class KeepSettings:
    """The epoch that is kept."""

    SECTION = "training"

    keep: str = flag(
        "best",
        choices=["last", "best", "window"],
        help="epoch that is saved and tested: the last; the best by --monitor; or the best one in the window of "
        "--window epochs with the best average",
    )
    monitor: str = flag(
        "loss",
        choices=["loss", "accuracy", "qwk"],
        help="validation metric of --keep",
    )
    window: int = flag(
        15,
        type=types.count,
        help="epochs in the window of --keep window",
    )


@dataclass(frozen=True, kw_only=True)
class TrainingSettings(OptimizerSettings, ScheduleSettings, OrderSettings, KeepSettings):
    """Training of classifiers, and of masks by patches."""


@dataclass(frozen=True, kw_only=True)
class ClassifierSettings(TrainingSettings):
    """Training on the targets of `--target`."""

    SECTION = "training"

    monitor: str = flag(
        "loss",
        choices=list(dict.fromkeys(name for names in choices.MONITORS.values() for name in names)),
        help="validation metric of --keep: loss; accuracy or qwk of classes; concordance of survival; mae of a number; "
        "auc, the mean of several labels",
    )
    class_weights: bool = flag(
        False, help="weight classes by inverse frequency; weights add up to 1"
    )


@dataclass(frozen=True, kw_only=True)
class EvaluationSettings:
    """Evaluation of a classifier of bags."""

    SECTION = "training"

    eval_sample: float | None = flag(
        type=types.positive,
        help="instances drawn from a test bag: a number, or a share below 1 (default: all)",
    )
    eval_repeats: int = flag(
        1,
        type=types.count,
        help="number of draws of --eval-sample; metrics are means",
    )
