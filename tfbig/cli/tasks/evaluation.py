"""What a trained classifier is worth: predictions, metrics and pictures of the test bags."""

import keras
import numpy as np

from tfbig import metrics, mil
from tfbig.cli import settings as command_line
from tfbig.metrics import roc
from tfbig.results import figures, run_folder, slide_viewer

MAPS = 4
"""Bags whose attention is drawn."""


def add_flags(add):
    """Flags of the judgement."""
    number, positive = command_line.count, command_line.positive
    add(
        "--eval-sample",
        type=positive,
        help="instances of a test bag, a number or a share, drawn --eval-repeats times (default: all instances)",
    )
    add("--eval-repeats", type=number, default=1, help="(default: %(default)s)")


def write_results(explain, data, folder, settings, measured):
    """Predictions, pictures, and last the metrics, which say that the run has ended.

    Args:
        explain: from a bag to its logits, attention and scores, see `tfbig.mil.MIL.explain`.
        data: of the run.
        folder: of the run.
        settings: of the run.
        measured: numbers to keep beside the metrics.
    """
    repeats = [_judged(explain, data, settings, seed) for seed in range(settings.eval_repeats)]
    run_folder.write_csv(folder / run_folder.PREDICTIONS, _rows(repeats, data))
    counts = np.sum([r["confusion"] for r in repeats], axis=0)
    title = f"{len(data.test.bags)} test bags" + (f" x {len(repeats)}" if len(repeats) > 1 else "")
    figures.confusion(folder / "confusion.png", counts, data.classes, title)
    _draw_maps(explain, data, folder)
    found = {"test_" + key: _spread([r[key] for r in repeats]) for key in _numbers(repeats[0])}
    means = {key: mean for key, (mean, _) in found.items()}
    if len(repeats) > 1:
        means |= {f"{key}_std": std for key, (_, std) in found.items()}
    means["confusion"] = counts.tolist()
    means["left_out"] = [list(reason) for reason in data.failed]
    command_line.write_metrics(folder, settings, measured | means)
    command_line.tell_results({key: mean for key, (mean, _) in found.items()}, folder)


def _judged(explain, data, settings, seed):
    """One pass over the test bags, on all instances or on a sample."""
    test = data.test
    probabilities, instance_aucs = [], []
    for number, bag in enumerate(test.bags):
        size = mil.sample_size(bag, settings.eval_sample)
        drawn = bag.sample(size, settings.seed + 1000 * seed + number)
        found = explain(drawn)
        logits = found["logits"]
        probabilities.append(softmax(logits["bag"] if isinstance(logits, dict) else logits))
        if drawn.labels is not None and 0 < drawn.labels.sum() < len(drawn.labels):
            instance_aucs.append(roc.auc(drawn.labels, found["attention"]))
    found = scores(test.labels, np.stack(probabilities), len(data.classes))
    instance_auc = float(np.mean(instance_aucs)) if instance_aucs else float("nan")
    return found | {"instance_auc": instance_auc}


def scores(labels, probabilities, classes):
    """What predictions are worth: confusion, accuracy, quadratic weighted kappa, area under the curve.

    Args:
        labels: classes, `[n]`.
        probabilities: `[n, classes]`.
        classes: how many.
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
    """Probabilities of logits `[..., classes]`, float64."""
    logits = np.asarray(logits, np.float64)
    odds = np.exp(logits - logits.max(-1, keepdims=True))
    return odds / odds.sum(-1, keepdims=True)


def _auc(labels, probabilities):
    if probabilities.shape[1] == 2:
        return float(roc.auc(labels, probabilities[:, 1]))
    return float(roc.macro_auc(labels, probabilities))


def _numbers(judged):
    """The metrics that are known."""
    return [k for k, v in judged.items() if isinstance(v, float) and v == v]


def _spread(values):
    return float(np.mean(values)), float(np.std(values))


def _rows(repeats, data):
    """A row for each test bag; probabilities are means over the repeats."""
    known = [{"bag": bag.name, "instances": bag.shape[0]} for bag in data.test.bags]
    probabilities = np.mean([r["probabilities"] for r in repeats], axis=0)
    return rows(known, data.test.labels, probabilities, data.classes)


def rows(known, labels, probabilities, classes):
    """Lines of `predictions.csv`: what is known of an item, its label, and what was predicted."""
    return [
        {
            **item,
            "label": classes[int(label)],
            "predicted": classes[int(p.argmax())],
            **{f"probability_{name}": float(x) for name, x in zip(classes, p, strict=True)},
        }
        for item, label, p in zip(known, labels, probabilities, strict=True)
    ]


def _draw_maps(explain, data, folder):
    """Attention over the first test bags of the last class, at most `MAPS`."""
    test, last = data.test, len(data.classes) - 1
    chosen = [bag for bag, y in zip(test.bags, test.labels, strict=True) if y == last]
    for number, bag in enumerate((chosen or list(test.bags))[:MAPS]):
        title = f"{bag.name}, {data.classes[last]}" if chosen else bag.name
        draw_attention(folder, f"attention_{number}", bag, explain(bag)["attention"], title)


def draw_attention(folder, name, bag, attention, title):
    """As a picture, and for the zoomable view of the report.

    Args:
        folder: of the run.
        name: of the files.
        bag: its instances.
        attention: of each, `[n]`.
        title: for people.
    """
    figures.attention_map(folder / f"{name}.png", bag, attention, title)
    canvas, places, side = figures.instances(bag, slide_viewer.MAX_SIDE)
    heat = slide_viewer.of_values("attention", figures.by_place(places, side, attention))
    slide_viewer.write_view(folder, name, canvas, [heat], title=title)
