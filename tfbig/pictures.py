"""PNG pictures of a run: the learning curve, and masks laid over a slide."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure

from tfbig.runfolder import beside
from tfbig.sources import Source

RIGHT = (0, 158, 115)
MISSED = (0, 114, 178)
FALSE = (213, 94, 0)
"""Colours that the colour-blind tell apart (Okabe and Ito)."""

_STRIP_ROWS = 512


def thumbnail(source: Source, max_side: int = 1200) -> npt.NDArray[Any]:
    """Every k-th row and column of an image, read strip by strip.

    Args:
        source: The image `[H, W, C]`.
        max_side: Most rows and columns of the result.

    Returns:
        `[ceil(H / k), ceil(W / k), C]` with the smallest `k` that fits.
    """
    step = -(-max(source.shape[:2]) // max_side)
    height = max(_STRIP_ROWS // step, 1) * step
    starts = range(0, source.shape[0], height)
    strips = [source.read(i, min(i + height, source.shape[0]))[::step, ::step] for i in starts]
    return np.concatenate(strips)


def tint(
    gray: npt.NDArray[Any], labels: npt.NDArray[Any], predicted: npt.NDArray[Any]
) -> npt.NDArray[np.uint8]:
    """Colours a slide by what was found: green is right, blue was missed, orange is false.

    Args:
        gray: `[H, W]` uint8, bright background.
        labels: `[H, W]`, true where there is tissue.
        predicted: `[H, W]`, true where tissue was found.

    Returns:
        `[H, W, 3]` uint8.
    """
    labels, predicted = labels.astype(bool), predicted.astype(bool)
    picture = np.repeat(gray[..., None].astype(np.float32), 3, axis=2)  # [H, W, 3]
    colours = (
        (RIGHT, labels & predicted),
        (MISSED, labels & ~predicted),
        (FALSE, predicted & ~labels),
    )
    for colour, where in colours:
        picture[where] = 0.55 * picture[where] + 0.45 * np.array(colour, np.float32)
    return picture.astype(np.uint8)


def overlay(
    path: str | Path, image: Source, labels: Source, prediction: Source, title: str
) -> None:
    """Draws what a network found on a slide beside the slide.

    Args:
        path: PNG file to write.
        image: Inverted gray slide `[H, W, 1]`, uint8.
        labels: `[H, W, 1]`, 1 where there is tissue.
        prediction: `[H, W, 1]`, probability of tissue.
        title: Line above the picture.
    """
    gray, truth, found = (thumbnail(s)[..., 0] for s in (image, labels, prediction))
    gray = 255 - gray
    wide = gray.shape[1] > 1.3 * gray.shape[0]
    figure = Figure(figsize=_figure_size(gray.shape, wide), layout="constrained")
    left, right = figure.subplots(*((2, 1) if wide else (1, 2)))
    left.imshow(gray, cmap="gray", vmin=0, vmax=255)
    left.set_title(title)
    right.imshow(tint(gray, truth > 0, found > 0.5))
    right.set_title("green: found, blue: missed, orange: false")
    for axes in (left, right):
        axes.set_axis_off()
    _save(figure, path)


def learning_curve(path: str | Path, history: Sequence[Mapping[str, float]]) -> None:
    """Draws loss and Dice over the epochs.

    Args:
        path: PNG file to write.
        history: Rows with `epoch`, `loss`, `val_loss`, `dice`, `val_dice`.
    """
    epochs = [row["epoch"] for row in history]
    figure = Figure(figsize=(9, 3.5), layout="constrained")
    for axes, name in zip(figure.subplots(1, 2), ("loss", "dice"), strict=True):
        axes.plot(epochs, [row[name] for row in history], "o-", label="training")
        axes.plot(epochs, [row[f"val_{name}"] for row in history], "s-", label="unseen slide")
        axes.set_xlabel("epoch")
        axes.set_ylabel({"loss": "binary cross-entropy", "dice": "Dice"}[name])
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.grid(alpha=0.3)
        axes.legend()
    _save(figure, path)


def _figure_size(shape: tuple[int, ...], wide: bool) -> tuple[float, float]:
    """Inches for two pictures of `shape`, one above the other if `wide`."""
    rows, columns = shape
    across = 10.0 if wide else 5.0
    each = across * rows / columns + 0.4
    return 10.0, 2 * each if wide else each


def _save(figure: Figure, path: str | Path) -> None:
    with beside(path) as part:
        figure.savefig(part, dpi=120)
