"""Settings of the training and evaluation of all tasks, and of classifiers."""

from __future__ import annotations

from dataclasses import dataclass

from tfbig.cli.settings import choices
from tfbig.cli.settings import value_types as types
from tfbig.cli.settings.flag import ENVIRONMENT, GIVEN, TUNABLE, flag


@dataclass(frozen=True, kw_only=True)
class EncoderWeights:
    """Initial weights of an encoder, and the scale of pixels that they expect."""

    SECTION = "network"

    encoder_weights: str | None = flag(
        exists="file or folder",
        kind=ENVIRONMENT,
        path=True,
        not_paths=(choices.IMAGENET, choices.RANDOM),
        metavar="imagenet|random|FILE|RUN",
        help="initial weights of the encoder: imagenet, which are fetched; a FILE of torchvision, timm or tfbig; or "
        "those of a RUN with the same encoder (default: random, or those of the recipe)",
    )
    mean: float | tuple[float, ...] | None = flag(
        type=float,
        nargs="+",
        help="mean of each channel divided by 255; encoders of pathology have their own (default: 0, or that of "
        "--encoder-weights; a FILE needs it)",
    )
    std: float | tuple[float, ...] | None = flag(
        type=float, nargs="+", help="standard deviation of each channel, as --mean (default: 1)"
    )


@dataclass(frozen=True, kw_only=True)
class OrderSettings:
    """Order of the images or bags."""

    SECTION = "optimisation"

    like_sizes: bool = flag(
        False,
        help="put items of similar size next to each other, so that workers wait less",
    )


@dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """Epochs, batches, the optimizer, its learning rate over the epochs, and the epoch that is kept."""

    SECTION = "optimisation"

    epochs: int = flag(10, kind=TUNABLE, type=types.count, help="number of epochs")
    batch_size: int = flag(
        1, kind=TUNABLE, type=types.count, help="bags of a step, all of the same size"
    )
    accumulate: int = flag(
        1,
        kind=TUNABLE,
        type=types.count,
        help="steps whose gradients are averaged before an update",
    )
    sum: bool = flag(
        False, help="sum the gradients of --accumulate steps instead of averaging them"
    )
    optimizer: str = flag("adam", choices=choices.OPTIMIZERS, help="optimizer")
    lr: float = flag(1e-3, kind=TUNABLE, type=types.positive, help="learning rate")
    epsilon: float = flag(
        1e-7,
        type=types.positive,
        help="epsilon of the optimizer",
        only_if={"optimizer": ("adam", "coupled_adam")},
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
    schedule: str = flag(
        "cosine",
        choices={
            "constant": "",
            "cosine": "to 0, epoch by epoch",
            "step-cosine": "to 0, step by step",
            "exponential": "by --rate",
            "linear": "to half, step by step",
        },
        help="learning rate over the epochs",
    )
    warmup: float | None = flag(
        type=types.positive,
        help="epochs in which the learning rate increases from 0, e.g. 2 (default: none)",
    )
    rate: float = flag(
        0.955,
        type=types.positive,
        help="factor of the learning rate per epoch",
        only_if={"schedule": ("exponential",)},
    )
    demon_steps: int | None = flag(
        type=types.count,
        help="steps after which the momentum is 0 (default: the steps of the run)",
        only_if={"optimizer": ("demon_adam", "demon_adamw")},
    )
    keep: str = flag(
        "best",
        choices={
            "last": "",
            "best": "by --monitor",
            "window": "the best of the --window epochs with the best average",
        },
        help="epoch that is saved and tested",
    )
    monitor: str = flag(
        "loss",
        choices=["loss", "accuracy", "qwk"],
        help="validation metric of --keep",
    )
    window: int = flag(
        15,
        type=types.count,
        help="epochs in the window",
        only_if={"keep": ("window",)},
    )


@dataclass(frozen=True, kw_only=True)
class ClassifierSettings(TrainingSettings, OrderSettings):
    """Training on the targets of `--target`."""

    SECTION = "optimisation"

    monitor: str = flag(
        "loss",
        choices=list(dict.fromkeys(name for names in choices.MONITORS.values() for name in names)),
        help="validation metric of --keep; accuracy and qwk are of --target class, concordance of survival, mae of "
        "regression, auc of multilabel",
    )
    class_weights: bool = flag(
        False,
        help="weight classes by inverse frequency; weights add up to 1",
        only_if={"target": ("class",)},
    )


@dataclass(frozen=True, kw_only=True)
class EvaluationSettings:
    """Evaluation of a classifier of bags."""

    SECTION = "evaluation"

    eval_sample: float | None = flag(
        type=types.positive,
        help="instances drawn from a test bag, or a share below 1 (default: all)",
    )
    eval_repeats: int = flag(
        1,
        type=types.count,
        help="number of draws of --eval-sample; metrics are means",
        only_if={"eval_sample": GIVEN},
    )
