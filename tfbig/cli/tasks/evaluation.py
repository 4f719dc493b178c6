"""Evaluation of a trained classifier: predictions, metrics and pictures of the test bags."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import keras
import numpy as np
import numpy.typing as npt

from tfbig import metrics, mil
from tfbig.cli.data.splits import Data
from tfbig.cli.settings.tasks import MILSettings
from tfbig.cli.tasks import run_results
from tfbig.metrics import roc
from tfbig.results import classification, figures, heatmap, run_folder, slide_viewer
from tfbig.sources import Coords, Slide

Explain = Callable[[Any], Mapping[str, Any]]
"""Function from a bag to logits, attention and scores, see `tfbig.mil.MIL.explain`."""
MAPS = 4
"""Largest number of bags without a slide whose attention is drawn."""


def write_results(
    explain: Explain,
    data: Data,
    folder: Path,
    settings: MILSettings,
    measured: Mapping[str, Any],
) -> None:
    """Write predictions, pictures, and last the metrics, whose presence means that the run has ended.

    Args:
        explain: Function from a bag to its explanation.
        data: Data of the run.
        folder: Run folder.
        settings: Settings of the run.
        measured: Numbers to save with the metrics.
    """
    repeats = [
        _evaluate_once(explain, data.test, data.classes, settings, seed)
        for seed in range(settings.eval_repeats)
    ]
    run_folder.write_csv(folder / run_folder.PREDICTIONS, _rows(repeats, data))
    counts = np.sum([r["confusion"] for r in repeats], axis=0)
    title = f"{len(data.test.bags)} test bags" + (f" x {len(repeats)}" if len(repeats) > 1 else "")
    figures.confusion(folder / "confusion.png", counts, data.classes, title)
    probabilities = np.mean([r["probabilities"] for r in repeats], axis=0)
    thresholds = _thresholds(explain, data, settings)
    classification.write(folder, data.test.labels, probabilities, data.classes, thresholds)
    _draw_maps(explain, data, folder, repeats[0])
    means, deviations = _means_and_deviations(repeats)
    results = {"confusion": counts.tolist(), "left_out": [list(reason) for reason in data.failed]}
    if len(repeats) > 1:
        results |= {f"{key}_std": std for key, std in deviations.items()}
    run_results.write_metrics(folder, settings, {**measured, **means, **results})
    run_results.print_results(means, folder)


def _means_and_deviations(
    repeats: Sequence[Mapping[str, Any]],
) -> tuple[dict[str, float], dict[str, float]]:
    """Return the mean and the standard deviation of each metric that is not NaN."""
    values = {f"test_{key}": [r[key] for r in repeats] for key in _valid_metrics(repeats[0])}
    return (
        {key: float(np.mean(numbers)) for key, numbers in values.items()},
        {key: float(np.std(numbers)) for key, numbers in values.items()},
    )


def _thresholds(explain: Explain, data: Data, settings: MILSettings) -> list[float] | None:
    """Return the threshold of each class: of the evaluated run, or chosen on the validation bags."""
    if settings.test_only:
        return classification.thresholds_of_run(settings.test_only, data.classes)
    results = _evaluate_once(explain, data.val, data.classes, settings, 0)
    return classification.best_thresholds(data.val.labels, results["probabilities"])


def _evaluate_once(
    explain: Explain, part: mil.BagSet, classes: Sequence[str], settings: MILSettings, seed: int
) -> dict[str, Any]:
    """Evaluate the bags of a split once, on all instances or on a sample."""
    probabilities, instance_aucs, attention = [], [], []
    for number, bag in enumerate(part.bags):
        size = mil.sample_size(bag, settings.eval_sample)
        drawn = bag.sample(size, settings.seed + 1000 * seed + number)
        explanation = explain(drawn)
        logits = explanation["logits"]
        probabilities.append(softmax(logits["bag"] if isinstance(logits, dict) else logits))
        attention.append(explanation["attention"] if drawn.shape == bag.shape else None)
        if drawn.labels is not None and 0 < drawn.labels.sum() < len(drawn.labels):
            instance_aucs.append(roc.auc(drawn.labels, explanation["attention"]))
    instance_auc = float(np.mean(instance_aucs)) if instance_aucs else float("nan")
    return {
        **scores(part.labels, np.stack(probabilities), len(classes)),
        "instance_auc": instance_auc,
        "attention": attention,
    }


def scores(
    labels: npt.NDArray[Any], probabilities: npt.NDArray[Any], classes: int
) -> dict[str, Any]:
    """Return confusion matrix, accuracy, quadratic weighted kappa and area under the curve of predictions.

    Args:
        labels: Classes, `[n]`.
        probabilities: Probabilities, `[n, classes]`.
        classes: Number of classes.
    """
    kappa = metrics.QuadraticWeightedKappa(classes)
    kappa.update_state(labels, probabilities.astype("float32"))
    return {
        "probabilities": probabilities,
        "confusion": np.asarray(keras.ops.convert_to_numpy(kappa.counts)),
        "accuracy": float((probabilities.argmax(1) == labels).mean()),
        "qwk": float(kappa.result()),
        "auc": _auc(labels, probabilities),
    }


def softmax(logits: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Return the probabilities of logits `[..., classes]`, float64."""
    values = np.asarray(logits, np.float64)
    odds = np.exp(values - values.max(-1, keepdims=True))
    shares: npt.NDArray[np.float64] = odds / odds.sum(-1, keepdims=True)
    return shares


def _auc(labels: npt.NDArray[Any], probabilities: npt.NDArray[Any]) -> float:
    if probabilities.shape[1] == 2:
        return float(roc.auc(labels, probabilities[:, 1]))
    return float(roc.macro_auc(labels, probabilities))


def _valid_metrics(judged: Mapping[str, Any]) -> list[str]:
    """Return the names of the metrics that are not NaN."""
    return [k for k, v in judged.items() if isinstance(v, float) and v == v]


def _rows(repeats: Sequence[Mapping[str, Any]], data: Data) -> list[dict[str, Any]]:
    """Return a row for each test bag; probabilities are means over the repeats."""
    items = [{"bag": bag.name, "instances": bag.shape[0]} for bag in data.test.bags]
    probabilities = np.mean([r["probabilities"] for r in repeats], axis=0)
    return rows(items, data.test.labels, probabilities, data.classes)


def rows(
    items: Iterable[Mapping[str, Any]],
    labels: Iterable[Any],
    probabilities: Iterable[Any],
    classes: Sequence[str],
) -> list[dict[str, Any]]:
    """Return the rows of `predictions.csv`: columns of the item, its label, and the prediction."""
    return [
        {
            **item,
            "label": classes[int(label)],
            "predicted": classes[int(p.argmax())],
            **{f"probability_{name}": float(x) for name, x in zip(classes, p, strict=True)},
        }
        for item, label, p in zip(items, labels, probabilities, strict=True)
    ]


def _draw_maps(explain: Explain, data: Data, folder: Path, evaluated: Mapping[str, Any]) -> None:
    """Draw the attention of all test slides; of other bags the first of the last class, at most `MAPS`."""
    test, last = data.test, len(data.classes) - 1
    first = [number for number, label in enumerate(test.labels) if label == last]
    others = (first or list(range(len(test.bags))))[:MAPS]
    drawn = [n for n, bag in enumerate(test.bags) if data.placed_on(bag) or n in others]
    for place, number in enumerate(drawn):
        bag, attention = test.bags[number], evaluated["attention"][number]
        attention = explain(bag)["attention"] if attention is None else attention
        probabilities = evaluated["probabilities"][number]
        predicted = (
            f"predicted {data.classes[int(probabilities.argmax())]} {probabilities.max():.1%}"
        )
        title = f"{bag.name}: {data.classes[int(test.labels[number])]}, {predicted}"
        if (placed := data.placed_on(bag)) is None:
            draw_attention(folder, f"attention_{place}", bag, attention, title)
        else:
            _draw_on_slide(folder, f"attention_{place}", *placed, attention, title)


def _draw_on_slide(
    folder: Path,
    name: str,
    open_slide: Callable[[], Slide],
    coords: Coords,
    attention: npt.NDArray[Any],
    title: str,
) -> None:
    """Draw attention over the whole slide, as a picture and for the zoomable view."""
    with closing(open_slide()) as slide:
        painted, share = heatmap.paint(coords, attention, slide)
        overlay = slide_viewer.attention_overlay(painted, len(attention), share)
        figures.slide_overlay(folder / f"{name}.png", slide, overlay, title)
        slide_viewer.write_slide_view(folder, name, slide, [overlay], title=title)


def draw_attention(
    folder: Path, name: str, bag: Any, attention: npt.NDArray[Any], title: str
) -> None:
    """Draw attention over the instances of a bag, as a picture and for the zoomable view of the report.

    Args:
        folder: Run folder.
        name: Name of the files.
        bag: The bag.
        attention: Attention of each instance, `[n]`.
        title: Title of the picture.
    """
    figures.attention_map(folder / f"{name}.png", bag, attention, title)
    canvas, places, side = figures.instances(bag, slide_viewer.MAX_SIDE)
    painted = figures.paint_instances(places, side, attention)
    overlay = slide_viewer.attention_overlay(painted, len(attention))
    slide_viewer.write_view(folder, name, canvas, [overlay], title=title)
