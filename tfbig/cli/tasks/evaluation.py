"""Evaluation of a trained classifier: predictions, metrics and pictures of the test bags."""

import keras
import numpy as np

from tfbig import metrics, mil
from tfbig.cli import settings as command_line
from tfbig.metrics import roc
from tfbig.results import figures, run_folder, slide_viewer

MAPS = 4
"""Largest number of bags whose attention is drawn."""


def add_flags(add):
    """Add the flags of the evaluation."""
    number, positive = command_line.count, command_line.positive
    add(
        "--eval-sample",
        type=positive,
        help="instances drawn from a test bag: a number, or a share below 1 (default: all)",
    )
    add(
        "--eval-repeats",
        type=number,
        default=1,
        help="number of draws of --eval-sample; metrics are means (default: %(default)s)",
    )


def write_results(explain, data, folder, settings, measurements):
    """Write predictions, pictures, and last the metrics, whose presence means that the run has ended.

    Args:
        explain: Function from a bag to logits, attention and scores, see `tfbig.mil.MIL.explain`.
        data: Data of the run.
        folder: Run folder.
        settings: Settings of the run.
        measurements: Numbers to save with the metrics.
    """
    repeats = [
        _evaluate_once(explain, data, settings, seed) for seed in range(settings.eval_repeats)
    ]
    run_folder.write_csv(folder / run_folder.PREDICTIONS, _rows(repeats, data))
    counts = np.sum([r["confusion"] for r in repeats], axis=0)
    title = f"{len(data.test.bags)} test bags" + (f" x {len(repeats)}" if len(repeats) > 1 else "")
    figures.confusion(folder / "confusion.png", counts, data.classes, title)
    _draw_maps(explain, data, folder)
    spread = {
        "test_" + key: _mean_and_std([r[key] for r in repeats])
        for key in _valid_metrics(repeats[0])
    }
    means = {key: mean for key, (mean, _) in spread.items()}
    if len(repeats) > 1:
        means |= {f"{key}_std": std for key, (_, std) in spread.items()}
    means["confusion"] = counts.tolist()
    means["left_out"] = [list(reason) for reason in data.failed]
    command_line.write_metrics(folder, settings, measurements | means)
    command_line.print_results({key: mean for key, (mean, _) in spread.items()}, folder)


def _evaluate_once(explain, data, settings, seed):
    """Evaluate the test bags once, on all instances or on a sample."""
    test = data.test
    probabilities, instance_aucs = [], []
    for number, bag in enumerate(test.bags):
        size = mil.sample_size(bag, settings.eval_sample)
        drawn = bag.sample(size, settings.seed + 1000 * seed + number)
        explanation = explain(drawn)
        logits = explanation["logits"]
        probabilities.append(softmax(logits["bag"] if isinstance(logits, dict) else logits))
        if drawn.labels is not None and 0 < drawn.labels.sum() < len(drawn.labels):
            instance_aucs.append(roc.auc(drawn.labels, explanation["attention"]))
    explanation = scores(test.labels, np.stack(probabilities), len(data.classes))
    instance_auc = float(np.mean(instance_aucs)) if instance_aucs else float("nan")
    return explanation | {"instance_auc": instance_auc}


def scores(labels, probabilities, classes):
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


def softmax(logits):
    """Return the probabilities of logits `[..., classes]`, float64."""
    logits = np.asarray(logits, np.float64)
    odds = np.exp(logits - logits.max(-1, keepdims=True))
    return odds / odds.sum(-1, keepdims=True)


def _auc(labels, probabilities):
    if probabilities.shape[1] == 2:
        return float(roc.auc(labels, probabilities[:, 1]))
    return float(roc.macro_auc(labels, probabilities))


def _valid_metrics(judged):
    """Return the names of the metrics that are not NaN."""
    return [k for k, v in judged.items() if isinstance(v, float) and v == v]


def _mean_and_std(values):
    return float(np.mean(values)), float(np.std(values))


def _rows(repeats, data):
    """Return a row for each test bag; probabilities are means over the repeats."""
    items = [{"bag": bag.name, "instances": bag.shape[0]} for bag in data.test.bags]
    probabilities = np.mean([r["probabilities"] for r in repeats], axis=0)
    return rows(items, data.test.labels, probabilities, data.classes)


def rows(items, labels, probabilities, classes):
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


def _draw_maps(explain, data, folder):
    """Draw the attention of the first test bags of the last class, at most `MAPS`."""
    test, last = data.test, len(data.classes) - 1
    chosen = [bag for bag, y in zip(test.bags, test.labels, strict=True) if y == last]
    for number, bag in enumerate((chosen or list(test.bags))[:MAPS]):
        title = f"{bag.name}, {data.classes[last]}" if chosen else bag.name
        draw_attention(folder, f"attention_{number}", bag, explain(bag)["attention"], title)


def draw_attention(folder, name, bag, attention, title):
    """Draw attention as a picture, and for the zoomable view of the report.

    Args:
        folder: Run folder.
        name: Name of the files.
        bag: The bag.
        attention: Attention of each instance, `[n]`.
        title: Title of the picture.
    """
    figures.attention_map(folder / f"{name}.png", bag, attention, title)
    canvas, places, side = figures.instances(bag, slide_viewer.MAX_SIDE)
    heat = slide_viewer.value_overlay("attention", figures.paint_instances(places, side, attention))
    slide_viewer.write_view(folder, name, canvas, [heat], title=title)
