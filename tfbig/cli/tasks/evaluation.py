"""Evaluation of a trained model of bags: predictions, metrics and pictures of the test bags."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tfbig import mil
from tfbig.cli.data.run_data import Data
from tfbig.cli.settings.tasks import MILSettings
from tfbig.cli.tasks import run_results
from tfbig.cli.tasks.target import Target
from tfbig.metrics import roc
from tfbig.results import figures, heatmap, run_folder, slide_viewer
from tfbig.sources import Coords, Slide
from tfbig.system.output_folder import file_in

Explain = Callable[[Any], Mapping[str, Any]]
"""Function from a bag to logits, attention and scores, see `tfbig.mil.MIL.explain`."""
MAPS = 4
"""Largest number of bags without a slide whose attention is drawn."""


class Evaluated(NamedTuple):
    """Predictions of the bags of a split `[n, width]`, figures of merit, and attention of bags that were read whole."""

    predictions: npt.NDArray[Any]
    merits: dict[str, float]
    attention: list[Any]


def write_results(
    target: Target,
    explain: Explain,
    data: Data,
    folder: Path,
    settings: MILSettings,
    measured: Mapping[str, Any],
) -> None:
    """Write predictions, pictures, and last the metrics, whose presence means that the run has ended.

    Args:
        target: What is predicted.
        explain: Function from a bag to its explanation.
        data: Data of the run.
        folder: Run folder.
        settings: Settings of the run.
        measured: Numbers to save with the metrics.
    """
    repeats = [
        _evaluated(target, explain, data.test, settings, seed)
        for seed in range(settings.eval_repeats)
    ]
    predictions = np.mean([each.predictions for each in repeats], axis=0)
    run_folder.write_csv(folder / run_folder.PREDICTIONS, _rows(target, predictions, data))

    def predict(part: mil.BagSet) -> npt.NDArray[Any]:
        return _evaluated(target, explain, part, settings, 0).predictions

    reference = target.reference(predict, data, settings.test_only)
    drawn = [each.predictions for each in repeats]
    results = target.write(folder, drawn, data.test, reference)
    _draw_maps(target, explain, data, folder, repeats[0])
    means, deviations = _means_and_deviations([each.merits for each in repeats])
    results["left_out"] = [list(reason) for reason in data.failed]
    if len(repeats) > 1:
        results |= {f"{key}_std": std for key, std in deviations.items()}
    run_results.write_metrics(folder, settings, {**measured, **means, **results})
    run_results.print_results(means, folder)


def _means_and_deviations(
    repeats: Sequence[Mapping[str, float]],
) -> tuple[dict[str, float], dict[str, float]]:
    """Return the mean and the standard deviation of each metric that is not NaN."""
    names = [key for key, value in repeats[0].items() if value == value]
    values = {f"test_{key}": [each[key] for each in repeats] for key in names}
    return (
        {key: float(np.mean(numbers)) for key, numbers in values.items()},
        {key: float(np.std(numbers)) for key, numbers in values.items()},
    )


def _evaluated(
    target: Target, explain: Explain, part: mil.BagSet, settings: MILSettings, seed: int
) -> Evaluated:
    """Evaluate the bags of a split once, on all instances or on a sample."""
    outputs, instance_aucs, attention = [], [], []
    for number, bag in enumerate(part.bags):
        size = mil.sample_size(bag, settings.eval_sample)
        drawn = bag.sample(size, settings.seed + 1000 * seed + number)
        explanation = explain(drawn)
        outputs.append(logits_of(explanation))
        attention.append(explanation["attention"] if drawn.shape == bag.shape else None)
        if drawn.labels is not None and 0 < drawn.labels.sum() < len(drawn.labels):
            instance_aucs.append(roc.auc(drawn.labels, explanation["attention"]))
    predictions = target.predicted(np.stack(outputs))
    instance_auc = float(np.mean(instance_aucs)) if instance_aucs else float("nan")
    merits = {**target.judged(predictions, part), "instance_auc": instance_auc}
    return Evaluated(predictions, merits, attention)


def logits_of(explanation: Mapping[str, Any]) -> npt.NDArray[Any]:
    """Return the outputs for the whole bag, `[num_outputs]`, of an explanation."""
    logits = explanation["logits"]
    return np.asarray(logits["bag"] if isinstance(logits, dict) else logits)


def _rows(target: Target, predictions: npt.NDArray[Any], data: Data) -> list[dict[str, Any]]:
    """Return a row for each test bag."""
    return [
        {
            "bag": bag.name,
            "instances": bag.shape[0],
            **target.truth(label, data),
            **target.columns(prediction),
        }
        for bag, label, prediction in zip(
            data.test.bags, data.test.labels, predictions, strict=True
        )
    ]


def _draw_maps(
    target: Target, explain: Explain, data: Data, folder: Path, evaluated: Evaluated
) -> None:
    """Draw the attention of all test slides; of other bags the first by the target, at most `MAPS`."""
    test = data.test
    others = target.first_drawn(test, evaluated.predictions)[:MAPS]
    drawn = [n for n, bag in enumerate(test.bags) if data.placed_on(bag) or n in others]
    for place, number in enumerate(drawn):
        bag, attention = test.bags[number], evaluated.attention[number]
        attention = explain(bag)["attention"] if attention is None else attention
        truth = in_words(target.truth(test.labels[number], data))
        title = f"{bag.name}: {truth}, predicted {target.caption(evaluated.predictions[number])}"
        if (placed := data.placed_on(bag)) is None:
            draw_attention(folder, f"attention_{place}", bag, attention, title)
        else:
            _draw_on_slide(folder, f"attention_{place}", *placed, attention, title)


def in_words(truth: Mapping[str, Any]) -> str:
    """Return the columns of a label for a title: a class alone, else names and numbers."""
    if list(truth) == ["label"]:
        return str(truth["label"])
    return ", ".join(
        f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in truth.items()
        if value != ""
    )


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
        figures.slide_overlay(file_in(folder, f"{name}.png"), slide, overlay, title)
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
    figures.attention_map(file_in(folder, f"{name}.png"), bag, attention, title)
    canvas, places, side = figures.instances(bag, slide_viewer.MAX_SIDE)
    painted = figures.paint_instances(places, side, attention)
    overlay = slide_viewer.attention_overlay(painted, len(attention))
    slide_viewer.write_view(folder, name, canvas, [overlay], title=title)
