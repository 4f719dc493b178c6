"""Evaluation of a trained model of bags: predictions, metrics and pictures of the test bags."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tfbig import mil
from tfbig.cli.data.run_data import Data
from tfbig.cli.settings.tasks import MILSettings
from tfbig.cli.tasks.label_task import Predicted
from tfbig.cli.tasks.target import Target
from tfbig.metrics import roc
from tfbig.results import figures, heatmap, slide_viewer
from tfbig.sources import Coords, Slide
from tfbig.system.output_folder import file_in

Explain = Callable[[Any], Mapping[str, Any]]
"""Function from a bag to logits, attention and scores, see `tfbig.mil.MIL.explain`."""
MOST_MAPS = 4
"""Largest number of bags without a slide whose attention is drawn."""


def predicted(
    target: Target, explain: Explain, part: mil.BagSet, settings: MILSettings, repeat: int
) -> Predicted:
    """Predict the bags of a split once, on all instances or on a sample.

    Args:
        target: What is predicted.
        explain: Function from a bag to its explanation.
        part: The bags.
        settings: Settings of the run.
        repeat: Number of the repeat; each draws other samples.
    """
    outputs, instance_aucs, attention = [], [], []
    for number, bag in enumerate(part.bags):
        size = mil.sample_size(bag, settings.eval_sample)
        drawn = bag.sample(size, settings.seed + 1000 * repeat + number)
        explanation = explain(drawn)
        outputs.append(logits_of(explanation))
        attention.append(explanation["attention"] if drawn.shape == bag.shape else None)
        if drawn.labels is not None and 0 < drawn.labels.sum() < len(drawn.labels):
            instance_aucs.append(roc.auc(drawn.labels, explanation["attention"]))
    predictions = target.predicted(np.stack(outputs))
    instance_auc = float(np.mean(instance_aucs)) if instance_aucs else float("nan")
    merits = {**target.judged(predictions, part), "instance_auc": instance_auc}
    return Predicted(predictions, merits, attention)


def logits_of(explanation: Mapping[str, Any]) -> npt.NDArray[Any]:
    """The logits of the whole bag, `[num_outputs]`, in an explanation."""
    logits = explanation["logits"]
    return np.asarray(logits["bag"] if isinstance(logits, dict) else logits)


def draw_maps(
    target: Target, explain: Explain, data: Data, folder: Path, predicted: Predicted
) -> None:
    """Draw the attention of all test slides; of other bags the first by the target, at most `MOST_MAPS`.

    Args:
        target: What is predicted.
        explain: Function from a bag to its explanation.
        data: Data of the run.
        folder: Run folder.
        predicted: Predictions of the test bags.
    """
    test = data.judged
    others = target.first_drawn(test, predicted.predictions)[:MOST_MAPS]
    drawn = [n for n, bag in enumerate(test.bags) if data.origin_of(bag) or n in others]
    for place, number in enumerate(drawn):
        bag, attention = test.bags[number], predicted.attention[number]
        attention = explain(bag)["attention"] if attention is None else attention
        truth = in_words(target.truth(test.labels[number], data))
        title = f"{bag.name}: {truth}, predicted {target.caption(predicted.predictions[number])}"
        if (origin := data.origin_of(bag)) is None:
            draw_attention(folder, f"attention_{place}", bag, attention, title)
        else:
            _draw_on_slide(folder, f"attention_{place}", *origin, attention, title)


def in_words(truth: Mapping[str, Any]) -> str:
    """Put the columns of a label into a title: a class alone, else names and numbers."""
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
    """Draw attention `[n]` over the instances of a bag, as a picture and for the zoomable view of the report.

    `name` is that of the files.
    """
    figures.attention_map(file_in(folder, f"{name}.png"), bag, attention, title)
    canvas, places, side = figures.instances(bag, slide_viewer.MAX_SIDE)
    painted = figures.paint_instances(places, side, attention)
    overlay = slide_viewer.attention_overlay(painted, len(attention))
    slide_viewer.write_view(folder, name, canvas, [overlay], title=title)
