"""Model card of a finished run, from the files of its folder: data, settings, results, limits."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tfbig.results import run_folder, shown
from tfbig.results.pixel_sizes import in_um, trained_pixels
from tfbig.results.report import Used
from tfbig.tasks import declared
from tfbig.units import format_bytes

NAME = "MODEL_CARD.md"

_WAYS = {"offload": "streamed exactly", "patchgd": "by patch gradient descent"}
"""How a run of `--mode` computes."""
_DATA = (
    *(
        "data",
        "bags",
        "images",
        "features",
        "slides",
        "splits",
        "coords",
        "shares",
        "fold",
        "folds",
    ),
    *("group", "mpp", "tile", "background", "tissue", "stain", "target", "class_names"),
)
"""Settings that say what the data is."""
_PATHS = {"data", "features", "slides", "splits", "coords"}
"""Paths of which the card has the last name only, since cards are given away."""
_APART = ("mode", "epochs", "confusion", "left_out", "beside")
"""Metrics that are no results, or no numbers."""


def write_card(folder: str | Path, used: Used = dict) -> Path:
    """Write the model card `MODEL_CARD.md` of a finished run, and return its path.

    `used` picks the settings that play a part in a run from all its settings.

    Raises:
        SourceError: A file of the folder is damaged.
    """
    folder = Path(folder)
    settings = shown.settings(used(run_folder.read_yaml(folder / run_folder.CONFIG)), folder)
    metrics = run_folder.read_json(folder / run_folder.METRICS)
    versions = run_folder.read_json(folder / run_folder.VERSIONS)
    classes = shown.class_names(run_folder.read_rows(folder / run_folder.PREDICTIONS))
    failed = run_folder.left_out(folder, metrics)
    task = str(settings.get("task", ""))
    parts = [
        f"# Model card: {_text(folder.resolve().name)}",
        f"A Keras model for {_title(settings)}, trained by `tfbig train --task {_text(task)}`. Written from the "
        "run folder; what the data is, and who may use the model for what, is yours to add.",
        "## Model",
        _table([("file", run_folder.MODEL), *_model(folder, settings), *_named(versions)]),
        "## Data",
        _table([*_given(settings, _DATA), *_counts(folder, failed, shown.items(settings))]),
        "## Results",
        _table(_results(shown.results(metrics, classes))),
        shown.about_results(metrics),
        "## Settings",
        "`config.yaml` also has those that play no part here. `tfbig train --config config.yaml --out FOLDER` uses "
        "them again.",
        _table(
            _given(settings, [name for name in settings if name not in (*_DATA, "task", "out")])
        ),
        "## Limits",
        "\n".join(f"- {line}" for line in _limits(settings, metrics, failed)),
    ]
    run_folder.write_text(folder / NAME, "\n\n".join(part for part in parts if part) + "\n")
    return folder / NAME


def _title(settings: Mapping[str, Any]) -> str:
    """Say what the model is for, and how the task of `--mode` computed."""
    task = str(settings.get("task", ""))
    title = declared(task).product or task
    way = (
        _WAYS.get(str(settings.get("mode")), "")
        if task in ("images", "patchgd-segmentation")
        else ""
    )
    return f"{title}, {way}" if way else title


def _model(folder: Path, settings: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The parts of the model and its size."""
    rows = _given(settings, ("encoder", "model", "head", "encoder_weights"))
    path = folder / run_folder.MODEL
    return [*rows, ("size", format_bytes(path.stat().st_size))] if path.exists() else rows


def _named(versions: Mapping[str, Any]) -> list[tuple[str, str]]:
    names = ("run", "time", "tfbig", "tensorflow", "keras", "python")
    return [(name, _text(versions[name])) for name in names if name in versions]


def _counts(folder: Path, failed: list[dict[str, str]], items: str) -> list[tuple[str, str]]:
    """Count the items by their use, and those that were tested and left out."""
    tested = len(run_folder.read_rows(folder / run_folder.PREDICTIONS))
    slides = shown.slides(folder)
    rows = [(f"number of {items}", slides)] if slides else []
    rows += [("tested or validated", str(tested))] if tested else []
    pixels = trained_pixels(folder)
    rows += [("size of pixels", in_um(pixels))] if pixels else []
    return [*rows, ("left out", str(len(failed)))] if failed else rows


def _given(settings: Mapping[str, Any], names: Iterable[str]) -> list[tuple[str, str]]:
    """The settings that have a value; paths by their last name."""
    rows = []
    for name in names:
        value = settings.get(name)
        if value in (None, False, [], ""):
            continue
        if name in _PATHS and isinstance(value, str):
            value = Path(value).name
        shown = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
        rows.append((name, _text(shown)))
    return rows


def _results(metrics: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The metrics that are numbers; bytes with their unit."""
    rows = []
    for name, value in metrics.items():
        if name in _APART or isinstance(value, bool) or not isinstance(value, int | float):
            continue
        shown = format_bytes(int(value)) if name.endswith("_bytes") else f"{value:.4g}"
        rows.append((_text(name), shown))
    return rows


def _limits(
    settings: Mapping[str, Any], metrics: Mapping[str, Any], failed: list[dict[str, str]]
) -> list[str]:
    """Say what a user of the model should know."""
    task = declared(settings.get("task"))
    lines = [
        f"It was judged by the images named above alone. {task.shifts} may give worse results; test it on yours, with "
        "`tfbig evaluate`."
    ]
    if task.is_clinical:
        lines.append("It is no medical device, and no result of it is a diagnosis.")
    if not shown.is_tested(metrics):
        lines.append("Nothing was held back for a test.")
    if "folds" not in settings:
        lines.append("One split of the data: with another one, results may differ.")
    elif settings.get("fold") is None:
        lines.append("One split of the data: `--folds` says how much results depend on it.")
    lines.append(
        f"One seed ({settings.get('seed', 0)}): `--seeds` says how much results depend on it."
    )
    if str(settings.get("precision", "")).startswith("mixed"):
        lines.append(f"Computed in {_text(settings['precision'])}, which rounds.")
    if failed:
        names = ", ".join(_text(next(iter(row.values()), "")) for row in failed[:5])
        files = "1 file" if len(failed) == 1 else f"{len(failed)} files"
        lines.append(
            f"{files} could not be read{', among them' if len(failed) > 5 else ':'} {names}."
        )
    return lines


def _table(rows: Iterable[tuple[str, str]]) -> str:
    """A table of names and values; nothing without rows."""
    lines = [f"| {name} | {value} |" for name, value in rows]
    return "\n".join(["| | |", "|---|---|", *lines]) if lines else ""


def _text(value: Any) -> str:
    """Escape a text so that Markdown shows it as it is, on one line."""
    line = html.escape(" ".join(str(value).split()), quote=False)
    for mark in "\\`*_[]|#":
        line = line.replace(mark, f"\\{mark}")
    return line
