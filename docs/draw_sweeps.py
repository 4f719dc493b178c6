"""Draws the pictures of how tfbig works: docs/forward.svg, backward.svg, background.svg and attends.svg.

Run `python docs/draw_sweeps.py`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

DOCS = Path(__file__).resolve().parent
STRIPS = 4
INK, PAPER = "#233142", "#ffffff"
IMAGE, STORED, GRADIENT, HALO, SMALL = "#dce6f2", "#8fb3d9", "#e3a587", "#f2c14e", "#b9d7b0"


def canvas(width: float, height: float) -> tuple[Any, Any]:
    """Return a figure and its axes, in units of a tenth of an inch."""
    import matplotlib

    matplotlib.use("Agg")
    # Text stays text, and the file is the same each time it is drawn.
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "tfbig", "font.size": 10})
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(width / 10, height / 10))
    figure.subplots_adjust(0, 0, 1, 1)
    axes.set(xlim=(0, width), ylim=(height, 0))
    axes.axis("off")
    return figure, axes


def save(figure: Any, name: str) -> None:
    """Write a picture."""
    from matplotlib import pyplot as plt

    figure.savefig(DOCS / name, facecolor=PAPER, metadata={"Date": None})
    plt.close(figure)


def box(
    axes: Any, x: float, y: float, width: float, height: float, colour: str, **more: Any
) -> None:
    """Draw a rectangle, by its upper left corner."""
    from matplotlib.patches import Rectangle

    style = {"facecolor": colour, "edgecolor": INK, "linewidth": 1.0, **more}
    axes.add_patch(Rectangle((x, y), width, height, **style))


def text(axes: Any, x: float, y: float, words: str, **more: Any) -> None:
    """Write centred text."""
    axes.text(x, y, words, **{"ha": "center", "va": "center", "color": INK, **more})


def arrow(axes: Any, start: tuple[float, float], end: tuple[float, float], **more: Any) -> None:
    """Draw an arrow."""
    style = {"arrowstyle": "-|>", "color": INK, "linewidth": 1.4, **more}
    axes.annotate("", end, start, arrowprops=style)


def image(axes: Any, x: float, y: float, chosen: int | None, halo: float, colour: str) -> None:
    """Draw an image of `STRIPS` strips, one of them chosen, with the rows that it reads of its neighbours."""
    width, height = 13, 6
    for number in range(STRIPS):
        box(axes, x, y + number * height, width, height, colour if number == chosen else IMAGE)
    if chosen is not None and halo:
        for top in (y + chosen * height - halo, y + (chosen + 1) * height):
            box(axes, x, top, width, halo, HALO, hatch="///", alpha=0.9)


def forward(name: str = "forward.svg") -> None:
    """Draw two forward sweeps with BatchNormalization between them."""
    figure, axes = canvas(98, 46)
    for x, title in ((9.5, "image"), (44.5, "stored by sweep 0"), (80.5, "result of sweep 1")):
        text(axes, x, 4, title, weight="bold")
    image(axes, 3, 8, 1, 1.6, STORED)
    image(axes, 38, 8, 1, 0, STORED)
    image(axes, 74, 8, 1, 0, STORED)
    box(axes, 38, 12.4, 13, 1.6, HALO, hatch="///", alpha=0.9)
    box(axes, 38, 20, 13, 1.6, HALO, hatch="///", alpha=0.9)
    arrow(axes, (16.5, 17), (37.5, 17))
    text(axes, 27, 13.5, "sweep 0", weight="bold")
    text(axes, 27, 20.5, "convolution\non one strip", size=9)
    arrow(axes, (51.5, 17), (73.5, 17))
    text(axes, 62.5, 13.5, "sweep 1", weight="bold")
    text(axes, 62.5, 20.5, "normalise, ReLU,\nconvolution", size=9)
    box(axes, 30, 36.5, 29, 6.5, SMALL)
    text(axes, 44.5, 39.8, "barrier: mean and variance\nof the whole image", size=9)
    for number in range(STRIPS):
        arrow(axes, (40 + 3 * number, 32.5), (42 + 1.7 * number, 36.2), linewidth=0.9)
    text(axes, 31, 34.3, "sums of strips", size=8.5)
    arrow(axes, (59.3, 39.8), (62.5, 24), connectionstyle="arc3,rad=0.35")
    box(axes, 3, 36.5, 3, 2.2, STORED)
    axes.text(7, 37.8, "one strip", va="center", size=9, color=INK)
    box(axes, 3, 40.3, 3, 2.2, HALO, hatch="///")
    axes.text(7, 41.6, "halo", va="center", size=9, color=INK)
    save(figure, name)


def backward(name: str = "backward.svg") -> None:
    """Draw the backward pass of one sweep."""
    figure, axes = canvas(98, 46)
    for x, title in (
        (9.5, "stored image"),
        (44.5, "one strip, again"),
        (80.5, "gradient of the result"),
    ):
        text(axes, x, 4, title, weight="bold")
    image(axes, 3, 8, 1, 1.6, STORED)
    box(axes, 34, 11, 21, 5.2, STORED)
    text(axes, 44.5, 13.6, "recompute the sweep", size=9)
    box(axes, 34, 18, 21, 5.2, GRADIENT)
    text(axes, 44.5, 20.6, "gradient of the sweep", size=9)
    arrow(axes, (44.5, 16.3), (44.5, 17.9))
    image(axes, 74, 8, 1, 0, GRADIENT)
    arrow(axes, (16.5, 15), (33.6, 13.4))
    arrow(axes, (73.5, 17.5), (55.4, 20.6))
    text(axes, 9.5, 35.2, "gradient of the stored image", size=9)
    box(axes, 3, 37.4, 13, 5.2, GRADIENT)
    box(axes, 3, 36.6, 13, 1.6, HALO, hatch="///")
    box(axes, 3, 41.8, 13, 1.6, HALO, hatch="///")
    arrow(axes, (34, 22), (16.5, 38.5), connectionstyle="arc3,rad=-0.15")
    text(axes, 28.5, 38.6, "rows that two strips read\nadd up", size=8.5)
    box(axes, 46, 33.5, 22, 4.2, SMALL)
    text(axes, 57, 35.6, "gradient of the weights", size=9)
    box(axes, 46, 39.2, 22, 4.2, SMALL)
    text(axes, 57, 41.3, "of mean and variance", size=9)
    arrow(axes, (47, 23.4), (54, 33.2))
    text(
        axes, 80.5, 37.4, "sums over all strips;\nthe second goes on to\nthe sweep before", size=8.5
    )
    save(figure, name)


def tissue(rows: int, columns: int) -> np.ndarray:
    """Return a mask of two pieces of tissue on a slide."""
    y, x = np.mgrid[:rows, :columns]
    large = ((y - 9) / 6.2) ** 2 + ((x - 10) / 7.5) ** 2 < 1 - 0.25 * np.sin(x / 2)
    return large | (((y - 15) / 2.6) ** 2 + ((x - 27) / 3.2) ** 2 < 1)


def background(name: str = "background.svg") -> None:
    """Draw which tiles of a slide are computed, and which pixel stands for the rest."""
    rows, columns, tile = 22, 36, 2
    mask = tissue(rows, columns)
    figure, axes = canvas(98, 50)
    side = 1.12
    for column, title in ((3, "slide: tissue on one colour"), (54, "what a sweep computes")):
        text(axes, column + columns * side / 2, 4, title, weight="bold")
        box(axes, column, 7, columns * side, rows * side, "#f4f4f4")
        for y, x in np.argwhere(mask):
            box(axes, column + x * side, 7 + y * side, side, side, "#c98fb0", linewidth=0)
    grown = np.zeros_like(mask)
    for y, x in np.argwhere(mask):
        grown[max(y - 1, 0) : y + 2, max(x - 1, 0) : x + 2] = True
    free = []
    for top in range(0, rows, tile):
        for left in range(0, columns, tile):
            border = top in (0, rows - tile) or left in (0, columns - tile)
            place = 54 + left * side, 7 + top * side, tile * side, tile * side
            if border or grown[top : top + tile, left : left + tile].any():
                box(axes, *place, "none", linewidth=1.2, edgecolor=INK)
            else:
                free.append(place)
                box(axes, *place, "none", linewidth=0.4, edgecolor="#bbbbbb")
    x, y, size, _ = free[-8]
    box(axes, x + size / 2 - 0.6, y + size / 2 - 0.6, 1.2, 1.2, HALO)
    arrow(axes, (x + size / 2, 39), (x + size / 2, y + size / 2 + 0.9))
    text(axes, x + size / 2, 41.5, f"one pixel, counted for all {len(free)} empty tiles", size=9)
    box(axes, 5, 37, 3.2, 3.2, "none", linewidth=1.2)
    for line, words in enumerate(
        (
            "computed: tissue, what the receptive field reaches",
            "around it, and where layers read padding",
        )
    ):
        axes.text(9.5, 38.6 + 2.6 * line, words, va="center", size=9, color=INK)
    box(axes, 5, 44, 3.2, 3.2, "none", linewidth=0.4, edgecolor="#bbbbbb")
    axes.text(9.5, 45.6, "not computed, and not stored", va="center", size=9, color=INK)
    save(figure, name)


def attends(name: str = "attends.svg") -> None:
    """Draw how a strip of queries reads stored keys and values in blocks."""
    figure, axes = canvas(98, 44)
    for x, title in ((9.5, "queries"), (44.5, "scores of a block"), (80.5, "keys and values")):
        text(axes, x, 4, title, weight="bold")
    image(axes, 3, 8, 1, 0, STORED)
    image(axes, 74, 8, None, 0, IMAGE)
    for number, block in enumerate((STORED, IMAGE, IMAGE)):
        box(axes, 74, 8 + 8 * number, 13, 8, block)
    text(axes, 92.5, 12, "one block", size=9)
    text(axes, 93, 24, "the others\nin turn", size=9)
    side = 1.6
    for row in range(4):
        for column in range(7):
            box(axes, 38.9 + column * side, 12 + row * side, side, side, "#f4f4f4", linewidth=0.5)
    arrow(axes, (16.5, 17), (38.2, 15.5))
    text(axes, 27, 13.2, "one strip", size=9)
    arrow(axes, (73.5, 12), (50.8, 14.5))
    box(axes, 31, 24, 27, 8, SMALL)
    text(
        axes,
        44.5,
        28,
        "so far, for each query: largest score,\nsum of the softmax, sum of the values",
        size=8.5,
    )
    arrow(axes, (44.5, 18.8), (44.5, 23.7))
    box(axes, 38, 37, 13, 4, STORED)
    arrow(axes, (44.5, 32.2), (44.5, 36.7))
    text(axes, 71, 39, "after the last block: the strip of the result", size=9)
    save(figure, name)


if __name__ == "__main__":
    forward()
    backward()
    background()
    attends()
