"""Report of a run: one HTML file with the contents of the run folder, which opens without a network.

The template `page/report.html` escapes all values, because a run folder may come from other people. The page runs no
scripts but its own and loads nothing (Content-Security-Policy). OpenSeadragon (https://openseadragon.github.io, BSD
3-clause), embedded in the file, shows the slides.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

import jinja2
import numpy as np
import yaml
from markupsafe import Markup

from tfbig.choices import MAX_VIEWS
from tfbig.errors import SourceError
from tfbig.results import (
    classification,
    embedded_views,
    regression,
    run_folder,
    shown,
    slide_viewer,
    survival,
)
from tfbig.units import counted, format_bytes

Used = Callable[[Mapping[str, Any]], Mapping[str, Any]]
"""Function that returns the settings that play a part in a run."""
NAME: Final = "report.html"
MAX_FIGURES: Final = 12
MAX_ROWS: Final = 1000
_APART: Final = ("confusion", "left_out", "planned_bytes", "peak_bytes", "base_bytes")
_SCRIPTS: Final = ("openseadragon.min.js", "report.js")
_POLICY: Final = (
    "default-src 'none'; base-uri 'none'; form-action 'none'; img-src data:; style-src 'unsafe-inline'; "
    "script-src "
)
_ABOUT_CLASSES: Final = (
    ("", "Each class against all others."),
    (
        "auc_low",
        "The interval of the AUC has a confidence of 95 % (DeLong); it is not defined for an AUC of 0 or 1 or for "
        "fewer than two samples.",
    ),
    (
        "threshold",
        "Sensitivity, specificity, precision and F1 are at the threshold, which has the largest sum of sensitivity and "
        "specificity on the validation data, or is 0.5 where these do not decide.",
    ),
    (
        "pixels",
        'Numbers are over the labelled pixels of all scenes; "pixels" counts those labelled as the class.',
    ),
)
"""Sentences below the table of the classes, each with the column that it explains."""
_ABOUT_GROUPS: Final = (
    "A higher risk is worse. Cases are the test cases, with the mean risk of their slides, above and below the median "
    "risk of the training cases. The median time is empty if more than half of a group have no event in all that time."
)
_ABOUT_AREAS: Final = (
    "How well the risk separates cases with an event up to a time from cases beyond it, at the quarters of the times "
    "of events (Uno et al., 2007). The interval of the concordance has a confidence of 95 % (bootstrap over cases)."
)
_ABOUT_LABELS: Final = " Each label is judged by the bags of which it is known."
_ABOUT_MONTAGES: Final = (
    "Planes of a volume with their numbers, evenly spaced from the first to the last one with a label or a "
    "prediction."
)
_ABOUT_RUNS: Final = (
    "The results above are means over the runs. The standard deviation is that of a sample (n - 1): how much runs "
    "differ. The interval has a confidence of 95 % and says how much the mean depends on the cases that were tested: "
    "they are drawn with replacement in each run (bootstrap). The folder of each run has its own report."
)
_ABOUT_COMPARISON: Final = (
    "Means over the runs of a series. Intervals have a confidence of 95 % and say how much a mean depends on the cases "
    "that were tested: they are drawn with replacement (bootstrap). Differences are from the first run; cases that "
    "both tested are drawn for both. Choose between runs by their validation data, not by this table."
)
_DAMAGED: Final = (
    *(OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError),
    yaml.YAMLError,
)
"""Errors of files with other contents than those that tfbig writes."""
_READ: Final = ("*.yaml", "*.json", "*.csv", "*.png", "*.txt", f"{slide_viewer.FOLDER}/*")
"""Files of a run folder that are read."""

Section = dict[str, Any]
"""Values of a section of the page: `title`, `kind`, which names a macro of the template, and what that expects."""


def write_report(folder: str | Path, max_views: int = MAX_VIEWS, used: Used = dict) -> Path:
    """Write `report.html` into a run folder, from the files in it, and return its path.

    At most `max_views` slides are embedded with zoom; eight take 6 MB at most, all 20 MB. `used` picks the settings
    that play a part in a run from all its settings.

    The report contains metrics and confusion matrix, learning curves, measured and planned memory, the plan, slides
    with overlays, figures, predictions, failures, and the settings.

    Raises:
        SourceError: The folder is not a run folder, or a file in it is damaged or a link to another folder.
    """
    place = Path(folder)
    config = sorted(place.glob("*.yaml"))
    if not config:
        raise SourceError(
            f"{place}: is not a run folder; expected one with config.yaml or predict.yaml. Check the path."
        )
    _check_files(place)
    try:
        page = _page(place, config, max_views, used)
    except SourceError:
        raise
    except _DAMAGED as error:
        raise SourceError(
            f"{place}: cannot be reported: a file in it is damaged ({type(error).__name__}: {error})."
        ) from error
    run_folder.write_text(place / NAME, page)
    return place / NAME


def _check_files(place: Path) -> None:
    """Raise SourceError for links to files of other folders, which the report would contain."""
    root = place.resolve()
    for file in (file for pattern in _READ for file in place.glob(pattern)):
        if not file.is_file() or not file.resolve().is_relative_to(root):
            raise SourceError(
                f"{file}: leads to {file.resolve()}; expected a file in the run folder. Remove it, or copy the file."
            )


def _page(place: Path, config: Sequence[Path], max_views: int, used: Used) -> str:
    metrics = run_folder.read_json(place / run_folder.METRICS)
    versions = run_folder.read_json(place / run_folder.VERSIONS)
    scripts = [_asset(name) for name in _SCRIPTS]
    hashes = (hashlib.sha256(script.encode()).digest() for script in scripts)
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    return environment.from_string(_asset("report.html")).render(
        policy=_POLICY + " ".join(f"'sha256-{base64.b64encode(h).decode()}'" for h in hashes),
        title=place.resolve().name,
        style=_asset("report.css"),
        scripts=scripts,
        about=_about(place, metrics, versions),
        sections=list(_sections(place, metrics, versions, config, max_views, used)),
    )


def _sections(
    place: Path,
    metrics: Mapping[str, Any],
    versions: Mapping[str, Any],
    config: Sequence[Path],
    max_views: int,
    used: Used,
) -> Iterator[Section]:
    predictions = run_folder.read_rows(place / run_folder.PREDICTIONS)
    yield from _results(metrics, predictions, _about_data(place, metrics))
    yield from _runs(place)
    yield from _compared_runs(place)
    yield from _classes(place, predictions)
    yield from _survival(place)
    yield from _regression(place)
    yield from _slides(slide_viewer.read_views(place), max_views, _items(place, predictions))
    yield from _curves(place)
    yield from _memory(metrics)
    yield from _comparison(metrics)
    plan = place / "plan.txt"
    if plan.exists():
        yield {"title": "Plan", "kind": "text", "text": plan.read_text(encoding="utf-8")}
    yield from _figures(place)
    if predictions:
        yield _table("Predictions", predictions)
    if failed := run_folder.left_out(place, metrics):
        yield _table("Left out", failed)
    for file in config:
        every = run_folder.read_yaml(file)
        settings = shown.settings(used(every), place)
        title = "Settings" if len(config) == 1 else f"Settings of {file.stem}"
        facts = _facts(title, {str(key).replace("_", " "): v for key, v in settings.items()})
        note = f"{file.name} also has settings that play no part in this run."
        yield facts | {"note": note if len(settings) < len(every) else ""}
    if versions:
        yield _facts("Versions", versions)


def _about(place: Path, metrics: Mapping[str, Any], versions: Mapping[str, Any]) -> str:
    """The line under the title."""
    task = _run_settings(place).get("task")
    words = [f"task {task}"] if task else []
    words += [f"mode {metrics['mode']}"] if "mode" in metrics else []
    if epochs := metrics.get("epochs"):
        words.append(counted(epochs, "epoch"))
    words += [f"tfbig {versions['tfbig']}, {versions['time']}"] if versions else []
    return "; ".join(words)


def _about_data(place: Path, metrics: Mapping[str, Any]) -> str:
    """Say which items a training run was judged by, and how many it had; empty for other runs."""
    settings = _run_settings(place)
    is_judged = any(name.startswith(("test_", "val_")) for name in metrics)
    if "task" not in settings or settings.get("test_only") or not is_judged:
        return ""
    about = shown.about_results(metrics, '"test"', '"val"')
    slides = shown.slides(place)
    return f"{about} {shown.items(settings).capitalize()}: {slides}." if slides else about


def _run_settings(place: Path) -> dict[str, Any]:
    """Read the settings of a run of train; empty for other folders."""
    config = place / run_folder.CONFIG
    return run_folder.read_yaml(config) if config.exists() else {}


def _results(
    metrics: Mapping[str, Any], predictions: Sequence[Mapping[str, str]], note: str
) -> Iterator[Section]:
    names = shown.class_names(predictions)
    numbers = {
        key.replace("_", " "): value
        for key, value in shown.results(metrics, names).items()
        if key not in _APART and isinstance(value, int | float)
    }
    if numbers:
        yield _facts("Results", numbers) | {"note": note}
    if "confusion" in metrics:
        counts = np.asarray(metrics["confusion"])
        names = names if len(names) == len(counts) else [*map(str, range(len(counts)))]
        yield _confusion(counts, names)


def _runs(place: Path) -> Iterator[Section]:
    """Yield the table of a series of runs."""
    rows = run_folder.read_rows(place / run_folder.RUNS)
    if rows:
        yield _table("Runs", rows) | {"note": _ABOUT_RUNS}


def _compared_runs(place: Path) -> Iterator[Section]:
    """Yield the table and the picture of a comparison of runs."""
    rows = run_folder.read_rows(place / run_folder.COMPARISON)
    if rows:
        yield _table("Comparison of runs", rows) | {"note": _ABOUT_COMPARISON}


def _classes(place: Path, predictions: Sequence[Mapping[str, str]]) -> Iterator[Section]:
    """Yield the table of the classes, or of several labels, and their curves."""
    rows = run_folder.read_rows(place / classification.TABLE)
    if rows:
        several = "auc" in rows[0] and bool(predictions) and "label" not in predictions[0]
        about = " ".join(words for name, words in _ABOUT_CLASSES if not name or name in rows[0])
        note = about + (_ABOUT_LABELS if several else "")
        yield _table("Labels" if several else "Classes", rows) | {"note": note}
    yield from _one_figure("Curves", place / classification.CURVES)


def _survival(place: Path) -> Iterator[Section]:
    """Yield the curves of the groups of risk, and the tables of groups and of areas under the curve."""
    yield from _one_figure("Survival", place / survival.CURVES)
    for title, name, about in (
        ("Groups of risk", survival.GROUPS, _ABOUT_GROUPS),
        ("Area under the curve at a time", survival.AREAS, _ABOUT_AREAS),
    ):
        if rows := run_folder.read_rows(place / name):
            yield _table(title, rows) | {"note": about}


def _regression(place: Path) -> Iterator[Section]:
    """Yield the figure of predicted against true values."""
    yield from _one_figure("Predicted and true values", place / regression.FIGURE)


def _one_figure(title: str, path: Path) -> Iterator[Section]:
    """Yield a section with one figure, if it exists."""
    if path.exists():
        yield {"title": title, "kind": "figures", "rows": [_figure(path)]}


def _confusion(counts: Any, names: Sequence[str]) -> Section:
    """The confusion table: rows are true classes, columns predicted; the colour is the share of the row."""
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    cells = [
        [(n, f"{0.6 * share:.2f}") for n, share in zip(row, part, strict=True)]
        for row, part in zip(counts.tolist(), shares.tolist(), strict=True)
    ]
    rows = list(zip(names, cells, strict=True))
    return {"title": "Confusion", "kind": "confusion", "names": names, "rows": rows}


def _items(place: Path, predictions: Sequence[Mapping[str, str]]) -> str:
    """Return what the items of a run are, by its settings, or of a prediction by the first column of its table."""
    settings = _run_settings(place)
    return shown.items(settings) if settings else shown.items_of(predictions)


def _slides(views: Sequence[slide_viewer.View], max_views: int, items: str) -> Iterator[Section]:
    if not views:
        return
    embedded = embedded_views.embed(views[:max_views])
    notes = [_ABOUT_MONTAGES] if items == "volumes" else []
    if len(views) > len(embedded):
        notes.append(f"{len(views) - len(embedded)} more are in the folder.")
    title = items.capitalize()
    yield {"title": title, "kind": "slides", "views": embedded, "note": " ".join(notes)}


def _curves(place: Path) -> Iterator[Section]:
    yield from _one_figure("Learning curves", place / "learning_curve.png")


def _memory(metrics: Mapping[str, Any]) -> Iterator[Section]:
    names = {"planned_bytes": "planned", "peak_bytes": "measured"}
    counts = {name: metrics[key] for key, name in names.items() if key in metrics}
    if not counts:
        return
    most, planned = max(1, *counts.values()), counts.get("planned", float("inf"))
    bars = [
        {
            "name": name,
            "over": count > planned,
            "percent": f"{100 * count / most:.1f}",
            "text": format_bytes(count),
        }
        for name, count in counts.items()
    ]
    yield {"title": "Memory of the process", "kind": "bars", "rows": bars}


def _comparison(metrics: Mapping[str, Any]) -> Iterator[Section]:
    """Yield a table with this run and the run given by `--beside`."""
    other = metrics.get("beside")
    if not other:
        return
    keys = [key for key in other if key not in ("run", "loss_difference")]
    names = ["run", *(key.removesuffix("_bytes").replace("_", " ") for key in keys)]
    rows = [
        {
            "wrong": False,
            "cells": [_plain(name), *(_full_precision(key, run.get(key)) for key in keys)],
        }
        for name, run in (("this", metrics), (Path(other["run"]).name, other))
    ]
    note = ""
    if "loss_difference" in other:
        note = f"The losses differ by {other['loss_difference']:.1e}."
    title = "Comparison with another run"
    yield {"title": title, "kind": "table", "names": names, "rows": rows, "note": note}


def _full_precision(key: str, value: Any) -> dict[str, Any]:
    if value is None or isinstance(value, str):
        return _plain(value or "")
    text = format_bytes(value) if key.endswith("_bytes") else f"{value:.6f}"
    return {"text": text, "number": True}


def _figures(place: Path) -> Iterator[Section]:
    """Yield the figures that have no other section."""
    viewed = {view.file.stem for view in slide_viewer.read_views(place)}
    own = (classification.CURVES, survival.CURVES, regression.FIGURE)
    elsewhere = {"learning_curve", "confusion", *(Path(name).stem for name in own)} | viewed
    figures = [path for path in sorted(place.glob("*.png")) if path.stem not in elsewhere]
    if figures:
        left = len(figures) - MAX_FIGURES
        note = f"{left} more figures are in the folder." if left > 0 else ""
        rows = [_figure(path) for path in figures[:MAX_FIGURES]]
        yield {"title": "Figures", "kind": "figures", "rows": rows, "note": note}


def _figure(path: Path) -> dict[str, str]:
    data = base64.b64encode(path.read_bytes()).decode()
    return {"name": path.stem.replace("_", " "), "url": f"data:image/png;base64,{data}"}


def _facts(title: str, values: Mapping[str, Any]) -> Section:
    rows = [(str(key), _cell(value)) for key, value in values.items() if value is not None]
    return {"title": title, "kind": "facts", "rows": rows}


def _table(title: str, rows: Sequence[Mapping[str, Any]]) -> Section:
    """A table of rows with equal keys; wrong predictions are highlighted."""
    left = len(rows) - MAX_ROWS
    return {
        "title": title,
        "kind": "table",
        "names": [str(key).replace("_", " ") for key in rows[0]],
        "rows": [
            {
                "wrong": "label" in row and row["label"] != row.get("predicted", row["label"]),
                "cells": [_cell(value) for value in row.values()],
            }
            for row in rows[:MAX_ROWS]
        ],
        "note": f"{left} more rows." if left > 0 else "",
    }


def _cell(value: Any) -> dict[str, Any]:
    """The text of a value, and whether it is a number."""
    if isinstance(value, bool):
        return _plain("yes" if value else "no")
    try:
        number = float(value)
    except (TypeError, ValueError):
        return _plain(", ".join(map(str, value)) if isinstance(value, list) else str(value))
    whole = number.is_integer() and abs(number) < 1e15
    return {"text": str(int(number)) if whole else f"{number:.4g}", "number": True}


def _plain(text: str) -> dict[str, Any]:
    return {"text": text, "number": False}


def _asset(name: str) -> Markup:
    """A file of the package, which is inserted as it is."""
    return Markup(files("tfbig.results").joinpath("page", name).read_text(encoding="utf-8"))
