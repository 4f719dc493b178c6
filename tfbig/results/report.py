"""Report of a run: one HTML file with the contents of the run folder, which opens without a network.

OpenSeadragon (https://openseadragon.github.io, BSD 3-clause), embedded in the file, shows the slides.
"""

from __future__ import annotations

import base64
import csv
import html
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

import numpy as np
import yaml
from PIL import Image

from tfbig.errors import SourceError
from tfbig.results import run_folder, slide_viewer
from tfbig.units import format_bytes

NAME: Final = "report.html"
MAX_VIEWS: Final = 8
MAX_FIGURES: Final = 12
MAX_ROWS: Final = 1000
TILE: Final = 512
CONTROLS: Final = """<div class="controls">
<select id="which" aria-label="slide"{hidden}>{options}</select>
<span><button id="nearer" aria-label="zoom in">+</button> <button id="farther" aria-label="zoom out">&minus;</button>
<button id="whole">whole slide</button></span><div class="controls" id="overlays"></div></div>
<div id="zoom"><div id="scale" hidden><span></span><i></i></div></div>"""
_APART: Final = ("confusion", "left_out", "planned_bytes", "peak_bytes", "base_bytes")


def write_report(folder: str | Path, max_views: int = MAX_VIEWS) -> Path:
    """Write `report.html` into a run folder, from the files in it.

    The report contains metrics and confusion matrix, learning curves, measured and planned memory, the plan, slides
    with overlays, figures, predictions, failures, and the settings.

    Args:
        folder: Folder of a training, evaluation, tiling or prediction run.
        max_views: Maximum number of slides to embed with zoom; each adds some megabytes.

    Returns:
        Path of the report.

    Raises:
        SourceError: The folder is not a run folder, or a file in it is damaged.
    """
    place = Path(folder)
    config = sorted(place.glob("*.yaml"))
    if not config:
        raise SourceError(
            f"{place}: is not a run folder; expected one with config.yaml or predict.yaml. Check the path."
        )
    try:
        parts = [part for part in _parts(place, config, max_views) if part]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, yaml.YAMLError) as error:
        raise SourceError(
            f"{place}: cannot be reported: a file in it is damaged ({type(error).__name__}: {error})."
        ) from error
    name = html.escape(place.resolve().name)
    head = f'<meta charset="utf-8"><title>{name}</title><style>{_asset("report.css")}</style>'
    head += '<meta name="viewport" content="width=device-width, initial-scale=1">'
    body = "\n".join([f"<h1>{name}</h1>", *parts])
    page = f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>{body}</body></html>\n'
    run_folder.write_text(place / NAME, page)
    return place / NAME


def _parts(place: Path, config: Sequence[Path], max_views: int) -> Iterable[str]:
    metrics = run_folder.read_json(place / run_folder.METRICS)
    predictions = _rows(place / run_folder.PREDICTIONS)
    versions = run_folder.read_json(place / run_folder.VERSIONS)
    yield f'<p class="about">{html.escape(_about(metrics, versions))}</p>'
    yield from _results(metrics, predictions)
    yield from _slides(slide_viewer.read_views(place), max_views)
    yield from _curves(place)
    yield from _memory(metrics)
    yield from _comparison(metrics)
    plan = place / "plan.txt"
    if plan.exists():
        yield _section("Plan", f"<pre>{html.escape(plan.read_text(encoding='utf-8'))}</pre>")
    yield from _figures(place)
    if predictions:
        yield _section("Predictions", _table(predictions))
    failed = _rows(place / run_folder.FAILED) + [
        {"name": name, "reason": reason} for name, reason in metrics.get("left_out", ())
    ]
    if failed:
        yield _section("Left out", _table(failed))
    for file in config:
        settings = yaml.safe_load(file.read_text(encoding="utf-8"))
        title = "Settings" if len(config) == 1 else f"Settings of {file.stem}"
        yield _section(title, _facts({key.replace("_", " "): v for key, v in settings.items()}))
    if versions:
        yield _section("Versions", _facts(versions))


def _about(metrics: Mapping[str, Any], versions: Mapping[str, Any]) -> str:
    words = [f"mode {metrics['mode']}"] if "mode" in metrics else []
    words += [f"{metrics['epochs']} epochs"] if "epochs" in metrics else []
    words += [f"tfbig {versions['tfbig']}, {versions['time']}"] if versions else []
    return "; ".join(words)


def _results(metrics: Mapping[str, Any], predictions: Sequence[Mapping[str, str]]) -> Iterable[str]:
    numbers = {
        key.replace("_", " "): value
        for key, value in metrics.items()
        if key not in _APART and isinstance(value, int | float)
    }
    if numbers:
        yield _section("Results", _facts(numbers))
    if "confusion" in metrics:
        counts = np.asarray(metrics["confusion"])
        first = predictions[0] if predictions else {}
        names = [
            key.removeprefix("probability_") for key in first if key.startswith("probability_")
        ]
        names = names if len(names) == len(counts) else [*map(str, range(len(counts)))]
        yield _section("Confusion", _confusion(counts, names))


def _confusion(counts: Any, names: Sequence[str]) -> str:
    """Return the confusion table: rows are true classes, columns predicted; the colour is the share of the row."""
    cells = "".join(f"<th>{html.escape(name)}</th>" for name in names)
    lines = [f"<thead><tr><th>true \\ predicted</th>{cells}</tr></thead>"]
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    for name, row, part in zip(names, counts, shares, strict=True):
        cells = "".join(
            f'<td style="--share: {0.6 * s:.2f}">{n}</td>' for n, s in zip(row, part, strict=True)
        )
        lines.append(f"<tr><th>{html.escape(name)}</th>{cells}</tr>")
    return f'<table class="confusion">{"".join(lines)}</table>'


def _slides(views: Sequence[dict[str, Any]], max_views: int) -> Iterable[str]:
    if not views:
        return
    embedded = [_embedded(view) for view in views[:max_views]]
    options = "".join(
        f'<option value="{i}">{html.escape(v["title"])}</option>' for i, v in enumerate(embedded)
    )
    body = CONTROLS.format(options=options, hidden=" hidden" if len(embedded) == 1 else "")
    if len(views) > len(embedded):
        body += f'<p class="about">{len(views) - len(embedded)} more are in the folder.</p>'
    data = json.dumps(embedded).replace("<", "\\u003c")
    body += f'<script type="application/json" id="views">{data}</script>'
    body += "".join(
        f"<script>{_asset(name)}</script>" for name in ("openseadragon.min.js", "report.js")
    )
    yield _section("Slides", body)


def _embedded(view: Mapping[str, Any]) -> dict[str, Any]:
    """Return a view as the script of the page expects it: images as pyramids of tiles."""
    overlays = [
        overlay | {"image": _tiled(overlay.pop("file"), "RGBA", "PNG")}
        for overlay in map(dict, view["overlays"])
    ]
    image = _tiled(view["file"], "RGB", "JPEG")
    return {"title": view["title"], "mpp": view["mpp"], "image": image, "overlays": overlays}


def _tiled(path: Path, mode: str, form: str) -> dict[str, Any]:
    with Image.open(path) as file:
        pixels = np.asarray(file.convert(mode))
    levels = [
        [
            [
                _data_url(level[row : row + TILE, column : column + TILE], form)
                for column in range(0, level.shape[1], TILE)
            ]
            for row in range(0, level.shape[0], TILE)
        ]
        for level in slide_viewer.pyramid(pixels, TILE)
    ]
    height, width = pixels.shape[:2]
    return {"width": width, "height": height, "tile": TILE, "levels": levels[::-1]}


def _curves(place: Path) -> Iterable[str]:
    curve = place / "learning_curve.png"
    if curve.exists():
        yield _section("Learning curves", _figure(curve))


def _memory(metrics: Mapping[str, Any]) -> Iterable[str]:
    names = {"planned_bytes": "planned", "peak_bytes": "measured"}
    counts = {name: metrics[key] for key, name in names.items() if key in metrics}
    if not counts:
        return
    most, planned = max(counts.values()), counts.get("planned", float("inf"))
    bars = "".join(
        f'<span>{name}</span><div class="bar{" over" if count > planned else ""}">'
        f'<i style="width: {100 * count / most:.1f}%"></i></div><span>{format_bytes(count)}</span>'
        for name, count in counts.items()
    )
    yield _section("Memory of the process", f'<div class="bars">{bars}</div>')


def _comparison(metrics: Mapping[str, Any]) -> Iterable[str]:
    """Yield a table with this run and the run given by `--beside`."""
    other = metrics.get("beside")
    if not other:
        return
    keys = [key for key in other if key not in ("run", "loss_difference")]
    names = "".join(f"<th>{key.removesuffix('_bytes').replace('_', ' ')}</th>" for key in keys)
    lines = [f"<thead><tr><th>run</th>{names}</tr></thead>"]
    for name, run in (("this", metrics), (Path(other["run"]).name, other)):
        cells = "".join(
            f'<td class="number">{_full_precision(key, run.get(key))}</td>' for key in keys
        )
        lines.append(f"<tr><th>{html.escape(name)}</th>{cells}</tr>")
    body = f"<table>{''.join(lines)}</table>"
    if "loss_difference" in other:
        body += f'<p class="about">The losses differ by {other["loss_difference"]:.1e}.</p>'
    yield _section("Comparison with another run", body)


def _full_precision(key: str, value: Any) -> str:
    if value is None or isinstance(value, str):
        return html.escape(value or "")
    return format_bytes(value) if key.endswith("_bytes") else f"{value:.6f}"


def _figures(place: Path) -> Iterable[str]:
    """Yield the figures that have no other section."""
    viewed = {view["file"].stem for view in slide_viewer.read_views(place)}
    elsewhere = {"learning_curve", "confusion"} | viewed
    figures = [path for path in sorted(place.glob("*.png")) if path.stem not in elsewhere]
    if figures:
        body = "".join(map(_figure, figures[:MAX_FIGURES]))
        if len(figures) > MAX_FIGURES:
            body += (
                f'<p class="about">{len(figures) - MAX_FIGURES} more figures are in the folder.</p>'
            )
        yield _section("Figures", body)


def _figure(path: Path) -> str:
    data = base64.b64encode(path.read_bytes()).decode()
    name = html.escape(path.stem.replace("_", " "))
    return f'<figure><img alt="{name}" src="data:image/png;base64,{data}"><figcaption>{name}</figcaption></figure>'


def _facts(values: Mapping[str, Any]) -> str:
    lines = "".join(
        f"<tr><th>{html.escape(str(key))}</th>{_cell(value)}</tr>"
        for key, value in values.items()
        if value is not None
    )
    return f"<table>{lines}</table>"


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a table of rows with equal keys; wrong predictions are highlighted."""
    head = "".join(f"<th>{html.escape(key.replace('_', ' '))}</th>" for key in rows[0])
    lines = [f"<thead><tr>{head}</tr></thead>"]
    for row in rows[:MAX_ROWS]:
        wrong = "label" in row and row["label"] != row.get("predicted", row["label"])
        mark = ' class="wrong"' if wrong else ""
        lines.append(f"<tr{mark}>{''.join(_cell(value) for value in row.values())}</tr>")
    more = f'<p class="about">{len(rows) - MAX_ROWS} more rows.</p>' if len(rows) > MAX_ROWS else ""
    return f'<div class="scroll"><table>{"".join(lines)}</table></div>{more}'


def _cell(value: Any) -> str:
    try:
        number = float(value)
    except (TypeError, ValueError):
        return f"<td>{html.escape(', '.join(map(str, value)) if isinstance(value, list) else str(value))}</td>"
    if isinstance(value, bool):
        return f"<td>{'yes' if value else 'no'}</td>"
    whole = number.is_integer() and abs(number) < 1e15
    return f'<td class="number">{int(number) if whole else f"{number:.4g}"}</td>'


def _section(title: str, body: str) -> str:
    return f"<section><h2>{html.escape(title)}</h2>\n{body}</section>"


def _data_url(pixels: slide_viewer.Pixels, form: str) -> str:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, form, **({"quality": 85} if form == "JPEG" else {}))
    return f"data:image/{form.lower()};base64,{base64.b64encode(file.getvalue()).decode()}"


def _asset(name: str) -> str:
    return files("tfbig.results").joinpath("page", name).read_text(encoding="utf-8")


def _rows(path: Path) -> list[dict[str, str]]:
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))
