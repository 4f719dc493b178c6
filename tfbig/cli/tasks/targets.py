"""The targets of `--target`, of a run and of its data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tfbig.cli import paths
from tfbig.cli.data.run_data import Data
from tfbig.cli.settings import target_settings
from tfbig.cli.settings.tasks import ImageSettings, MILSettings
from tfbig.cli.tasks import label_target, regression_target, survival_target
from tfbig.cli.tasks.class_target import ClassTarget
from tfbig.cli.tasks.label_target import LabelTarget
from tfbig.cli.tasks.regression_target import RegressionTarget
from tfbig.cli.tasks.survival_target import SurvivalTarget
from tfbig.cli.tasks.target import Target
from tfbig.results import run_folder

CLASS = "class"
TARGETS: dict[str, type[Target]] = {
    CLASS: ClassTarget,
    "survival": SurvivalTarget,
    "regression": RegressionTarget,
    "multilabel": LabelTarget,
}


def of_config(config: Mapping[str, Any], classes: tuple[str, ...]) -> Target:
    """Make the target of a run from its settings, with those that its data decided."""
    kind = config.get("target", CLASS)
    if kind == "survival":
        cuts = None if config["survival_loss"] == "cox" else tuple(config["time_cuts"])
        return SurvivalTarget(cuts, config["alpha"])
    if kind == "regression":
        return RegressionTarget(*config["value_scale"])
    return LabelTarget(classes) if kind == "multilabel" else ClassTarget(classes)


def of(settings: MILSettings | ImageSettings, data: Data) -> Target:
    """Make the target of a run from its settings, with those that its data decided, and its classes."""
    return of_config(vars(settings), data.classes)


def decided(settings: MILSettings | ImageSettings, data: Data) -> dict[str, Any]:
    """Check that the target can be learned, and return the settings that the training set decides.

    Raises:
        SourceError: The training set has no event, one time, one value, or one label.
    """
    learns, values = not settings.test_only, {}
    if settings.target == "survival":
        cox = settings.survival_loss == "cox"
        if learns:
            survival_target.check_splits(data, cox or settings.monitor == "concordance")
        if not cox:
            cuts = settings.time_cuts
            values["time_cuts"] = cuts or survival_target.cuts_of(data.train, settings.time_bins)
    elif settings.target == "regression":
        values["value_scale"] = settings.value_scale or regression_target.scale_of(data.train)
    elif settings.target == "multilabel" and learns:
        label_target.check_splits(data)
    return values | ({"class_names": data.classes} if data.classes else {})


def counter(target: Target) -> Callable[[Any], str] | None:
    """A function that describes the labels of a split; None for classes, which any split counts."""
    return None if isinstance(target, ClassTarget) else target.counts


def of_evaluated_run(settings: MILSettings | ImageSettings) -> dict[str, Any]:
    """Read the settings that the training set of the evaluated run decided; empty for classes.

    Raises:
        FlagError: The run has another target.
    """
    config = run_folder.read_yaml(Path(settings.test_only or "") / run_folder.CONFIG)
    trained = config.get("target", CLASS)
    if trained != settings.target:
        raise paths.FlagError(
            f"--target {settings.target}: {settings.test_only} was trained with --target {trained}. Use the same."
        )
    if settings.target == CLASS:
        return {}
    values = {name: config.get(name) for name in target_settings.DECIDED}
    return {
        name: tuple(value) if isinstance(value, list) else value for name, value in values.items()
    }
