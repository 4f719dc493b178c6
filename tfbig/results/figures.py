"""PNG figures: learning curves, tiles, masks over a slide, attention over a bag, latent grids, confusion matrices."""

from __future__ import annotations

import math
import textwrap
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import MaxNLocator
from mpl_toolkits.axes_grid1.anchored_artists import AnchoredSizeBar

from tfbig.results.geojson import COLOURS, hex_of
from tfbig.results.slide_viewer import Overlay, attention_overlay
from tfbig.sources import Bag, Coords, Slide, Source, Tiles
from tfbig.sources.bags.bag import resize
from tfbig.sources.writing import atomic_write
from tfbig.tissue.masks import Tissue
from tfbig.units import ceil_div

RIGHT, FALSE, MISSED = COLOURS[:3]
TILES, TISSUE = COLOURS[:2]
"""Colours of tiles and of tissue, also in the zoomable view of a report."""

DPI = 120
"""Pixels of a figure in an inch."""

_STRIP_ROWS = 512
_CHARACTERS = 9
"""Characters of a title in an inch."""


def thumbnail(source: Source, max_side: int = 1200) -> npt.NDArray[Any]:
    """Every k-th row and column of an image `[H, W, C]`, read strip by strip.

    `k` is the smallest with at most `max_side` rows and columns, `[ceil(H / k), ceil(W / k), C]`.
    """
    step = ceil_div(max(source.shape[:2]), max_side)
    height = max(_STRIP_ROWS // step, 1) * step
    starts = range(0, source.shape[0], height)
    ends = [min(start + height, source.shape[0]) for start in starts]
    # Rows are copied, so that the strip can be freed.
    return np.concatenate(
        [
            source.read(start, end)[::step, ::step].copy()
            for start, end in zip(starts, ends, strict=True)
        ]
    )


def tint(
    gray: npt.NDArray[Any], labels: npt.NDArray[Any], predicted: npt.NDArray[Any]
) -> npt.NDArray[np.uint8]:
    """Colour a slide by its prediction: green is correct, blue is missed, orange is a false positive.

    The slide is `[H, W]`, uint8, with a bright background. `labels` and `predicted` are `[H, W]`, true where there
    is tissue. The result is RGB, `[H, W, 3]`, uint8.
    """
    labels, predicted = labels.astype(bool), predicted.astype(bool)
    rgb = np.repeat(gray[..., None].astype(np.float32), 3, axis=2)  # [H, W, 3]
    colours = (
        (RIGHT, labels & predicted),
        (MISSED, labels & ~predicted),
        (FALSE, predicted & ~labels),
    )
    for colour, where in colours:
        rgb[where] = 0.55 * rgb[where] + 0.45 * np.array(colour, np.float32)
    return rgb.astype(np.uint8)


def overlay(
    path: str | Path, image: Source, labels: Source, prediction: Source, title: str
) -> None:
    """Draw a slide next to the same slide with a prediction over it.

    `image` is the inverted gray slide `[H, W, 1]`, uint8; `labels` are 1 where there is tissue, and `prediction` is
    its probability, both `[H, W, 1]`.
    """
    gray, truth, probability = (thumbnail(s)[..., 0] for s in (image, labels, prediction))
    gray = 255 - gray
    wide = gray.shape[1] > 1.3 * gray.shape[0]
    figure = Figure(figsize=_figure_size(gray.shape, wide), layout="constrained")
    left, right = figure.subplots(*((2, 1) if wide else (1, 2)))
    left.imshow(gray, cmap="gray", vmin=0, vmax=255)
    left.set_title(title)
    right.imshow(tint(gray, truth > 0, probability > 0.5))
    right.set_title("green: found, blue: missed, orange: false")
    for axes in (left, right):
        axes.set_axis_off()
    save(figure, path)


def learning_curve(
    path: str | Path,
    history: Sequence[Mapping[str, float]],
    labels: Mapping[str, str] = MappingProxyType({"loss": "binary cross-entropy", "dice": "Dice"}),
    unseen: str = "unseen slide",
) -> None:
    """Draw learning curves: training and validation over the epochs.

    Rows have `epoch`, and each column of `labels` with and without the prefix `val_`. `labels` name the axes by
    column, `unseen` the validation curve.
    """
    epochs = [row["epoch"] for row in history]
    figure = Figure(figsize=(4.5 * len(labels), 3.5), layout="constrained")
    all_axes = figure.subplots(1, len(labels), squeeze=False)[0]
    for axes, (name, label) in zip(all_axes, labels.items(), strict=True):
        axes.plot(epochs, [row[name] for row in history], "o-", label="training")
        others = [row[f"val_{name}"] for row in history]
        axes.plot(epochs, others, "s-", label=unseen, markersize=9, markerfacecolor="none")
        axes.set_ylabel(label)
        _show_epochs(axes, epochs)
        axes.legend()
    save(figure, path)


def _show_epochs(axes: Axes, epochs: Sequence[float]) -> None:
    """Show the axis of epochs, whole numbers, also of a single one."""
    axes.set_xlabel("epoch")
    whole = MaxNLocator("auto", steps=[1, 2, 5, 10], integer=True, min_n_ticks=1)
    axes.xaxis.set_major_locator(whole)
    if len(epochs) == 1:
        axes.set_xlim(epochs[0] - 0.5, epochs[0] + 0.5)
    axes.grid(alpha=0.3)


def run_curves(
    path: str | Path,
    histories: Mapping[str, Sequence[Mapping[str, Any]]],
    labels: Mapping[str, str],
    unseen: str = "unseen slide",
) -> None:
    """Draw the validation curve of each run, their mean, and one standard deviation of a sample around it.

    Rows of each run have `epoch`, and each column of `labels` with the prefix `val_`. `labels` name the axes by
    column, `unseen` the validation data.

    The mean is drawn as far as all runs were trained.
    """
    epochs = min(len(rows) for rows in histories.values())
    figure = Figure(figsize=(1.5 + 4.5 * len(labels), 3.5), layout="constrained")
    all_axes = figure.subplots(1, len(labels), squeeze=False)[0]
    for axes, (name, label) in zip(all_axes, labels.items(), strict=True):
        curves = {
            run: ([float(r["epoch"]) for r in rows], [float(r[f"val_{name}"]) for r in rows])
            for run, rows in histories.items()
        }
        for run, (times, values) in curves.items():
            axes.plot(times, values, ".-", linewidth=0.8, alpha=0.6, label=run)
        shared = np.array([values[:epochs] for _, values in curves.values()])
        mean, deviation = shared.mean(0), shared.std(0, ddof=1)
        times = times[:epochs]
        axes.plot(times, mean, "k-", linewidth=2, label="mean")
        axes.fill_between(times, mean - deviation, mean + deviation, color="k", alpha=0.12)
        axes.set_ylabel(f"{label}, {unseen}")
        _show_epochs(axes, max((each for each, _ in curves.values()), key=len))
    handles, names = all_axes[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside right center", fontsize="small")
    save(figure, path)


def intervals(path: str | Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Draw the mean and the interval of each run, one plot for each metric.

    Rows have `metric`, `run`, `mean`, and the ends `95 % from` and `to`.
    """
    metrics = list(dict.fromkeys(row["metric"] for row in rows))
    runs = list(dict.fromkeys(row["run"] for row in rows))
    size = (1.5 + 3 * len(metrics), 1.2 + 0.35 * len(runs))
    figure = Figure(figsize=size, layout="constrained")
    all_axes = figure.subplots(1, len(metrics), squeeze=False, sharey=True)[0]
    for axes, metric in zip(all_axes, metrics, strict=True):
        for row in (row for row in rows if row["metric"] == metric):
            place = runs.index(row["run"])
            axes.plot([row["95 % from"], row["to"]], [place, place], color=f"C{place % 10}")
            axes.plot([row["mean"]], [place], "o", color=f"C{place % 10}")
        axes.set_xlabel(metric)
        axes.xaxis.set_major_locator(MaxNLocator(4))
        axes.grid(alpha=0.3)
    all_axes[0].set_yticks(range(len(runs)), runs)
    all_axes[0].set_ylim(len(runs) - 0.5, -0.5)  # the first run is at the top
    save(figure, path)


def attention_map(
    path: str | Path, bag: Bag, attention: npt.NDArray[Any], title: str, max_side: int = 1200
) -> None:
    """Draw the instances of a bag in their positions, next to the attention of a model.

    The bag has tiles `[n, H, W, C]`, uint8, or features `[n, d]`, which are drawn grey. `attention`, `[n]`, adds up
    to 1.

    Instances without coordinates are drawn in rows from left to right. Key instances (`bag.labels`) have a green frame.

    Raises:
        ValueError: `attention` does not have one number for each instance.
    """
    count = bag.shape[0]
    if np.shape(attention) != (count,):
        raise ValueError(
            f"{bag.name}: attention has shape {np.shape(attention)}; expected ({count},)."
        )
    canvas, places, side = instances(bag, max_side)
    rows, columns = canvas.shape[:2]
    over = attention_overlay(paint_instances(places, side, attention), count)
    wide = columns > 1.3 * rows
    figure = Figure(figsize=_figure_size((rows, columns), wide), layout="constrained")
    first, second = figure.subplots(*((2, 1) if wide else (1, 2)))
    _add_title(figure, title)
    first.imshow(canvas)
    second.imshow(canvas)
    second.imshow(over.image, interpolation="nearest")
    _add_legend(figure, over)
    keys = places[np.asarray(bag.labels, bool)] if bag.labels is not None else ()
    for axes in (first, second):
        axes.set_axis_off()
        for top, left in keys:
            frame = Rectangle((left, top), side - 1, side - 1, fill=False, lw=1.2)
            frame.set_edgecolor((RIGHT[0] / 255, RIGHT[1] / 255, RIGHT[2] / 255))
            axes.add_patch(frame)
    save(figure, path)


def instances(
    bag: Bag, max_side: int = 4096
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64], int]:
    """Draw the instances of a bag, as in `attention_map`, in their positions on a white image.

    An instance has at most 64 rows and columns. The image is `[h, w, 3]`; top and left of each instance in it, `[n,
    2]`, and the side of an instance follow.
    """
    places, side = _places(bag, max_side)
    rows, columns = places.max(0) + side
    canvas = np.full((rows, columns, 3), 255, np.uint8)
    for i, (top, left) in enumerate(places):
        canvas[top : top + side, left : left + side] = _tile(bag, i, side)
    return canvas, places, side


def paint_instances(
    places: npt.NDArray[Any], side: int, values: npt.NDArray[Any]
) -> npt.NDArray[np.float32]:
    """Paint a number per instance into a map `[h, w]` with the layout of `instances`, NaN where there is none."""
    painted = np.full(places.max(0) + side, np.nan, np.float32)
    for (top, left), value in zip(places, values, strict=True):
        painted[top : top + side, left : left + side] = value
    return painted


def latent_grid(path: str | Path, image: Source, z: npt.NDArray[Any], title: str) -> None:
    """Draw an image next to its latent grid, with the first three principal components as red, green and blue.

    The image is `[H, W, 1 or 3]`, uint8, the grid `[rows, columns, d]`.

    Patches of similar colours have similar codes.
    """
    rows, columns, width = z.shape
    flat = z.reshape(-1, width).astype(np.float64)
    flat = flat - flat.mean(0)
    _, _, axes_of_z = np.linalg.svd(flat, full_matrices=False)
    components = np.zeros((len(flat), 3))
    components[:, : min(3, len(axes_of_z))] = flat @ axes_of_z[:3].T
    spread = np.maximum(abs(components).max(0), 1e-30)
    colours = (0.5 + components / spread / 2).reshape(rows, columns, 3)
    small = thumbnail(image)
    small = np.repeat(small, 3, axis=2) if small.shape[2] == 1 else small
    wide = small.shape[1] > 1.3 * small.shape[0]
    figure = Figure(figsize=_figure_size(small.shape[:2], wide), layout="constrained")
    first, second = figure.subplots(*((2, 1) if wide else (1, 2)))
    _add_title(figure, title)
    first.imshow(small)
    second.imshow(colours, interpolation="nearest")
    second.set_title(f"latent grid, {rows} x {columns} codes of {width}")
    for axes in (first, second):
        axes.set_axis_off()
    save(figure, path)


def _places(bag: Bag, max_side: int) -> tuple[npt.NDArray[Any], int]:
    """Place every instance of a bag: top and left `[n, 2]`, and the side of an instance, in pixels of the figure."""
    if isinstance(bag, Tiles):
        grid = (bag.corners - bag.corners.min(0)) / bag.size
    elif bag.coords is not None:
        corners = np.asarray(bag.coords, np.int64)[:, ::-1]  # y, x
        grid = (corners - corners.min(0)) / _pitch(corners)
    else:
        columns = int(np.ceil(bag.shape[0] ** 0.5))
        grid = np.stack(np.divmod(np.arange(bag.shape[0]), columns), axis=-1)
    side = max(min(int(max_side // (grid.max() + 1)), 64), 1)
    return np.round(grid * side).astype(np.int64), side


def _pitch(corners: npt.NDArray[Any]) -> int:
    """The most frequent distance between neighbours; the last of a row may be closer."""
    steps = np.concatenate([np.diff(np.unique(axis)) for axis in corners.T])
    distances, counts = np.unique(steps, return_counts=True)
    return int(distances[counts.argmax()]) if len(distances) else 1


def _tile(bag: Bag, index: int, side: int) -> npt.NDArray[Any]:
    """An instance as a square `[side, side, 3]`, grey if it is not an image."""
    if len(bag.shape) != 4 or bag.dtype != np.uint8:
        return np.full((side, side, 3), 200, np.uint8)
    tile = resize(bag.read(index, index + 1)[0], (side, side))
    return np.broadcast_to(tile[..., :3], (side, side, 3))


def tiles(
    path: str | Path,
    slide: Slide,
    coords: Coords,
    title: str,
    tissue: Tissue | None = None,
    max_side: int = 1600,
) -> None:
    """Draw the tiles of a slide, uint8, and the outline of its tissue, with a legend."""
    small = _thumbnail(slide, max_side)
    rows, columns = small.shape[:2]
    steps = slide.shape[1] / columns, slide.shape[0] / rows
    inches = 10 / max(rows, columns)
    figure = Figure(figsize=(max(columns * inches, 4), rows * inches + 0.8), layout="constrained")
    axes = figure.subplots()
    axes.imshow(small)
    if tissue is not None:
        height, width = tissue.mask.shape
        across, down = (np.arange(n) + 0.5 for n in (width, height))
        where = across * columns / width - 0.5, down * rows / height - 0.5
        axes.contour(*where, tissue.mask, [0.5], colors=[hex_of(TISSUE)], linewidths=0.8)
    side = coords.size_at_level_0
    corners = np.array([(0, 0), (side, 0), (side, side), (0, side)])
    squares = (coords.coords[:, None] + corners) / steps - 0.5
    edges = PolyCollection(squares, facecolors="none", edgecolors=hex_of(TILES), linewidths=0.6)
    axes.add_collection(edges)
    axes.set_axis_off()
    _add_title(figure, title)
    shown = {"tile": TILES} | ({} if tissue is None else {"tissue": TISSUE})
    handles = [Patch(label=name, ec=hex_of(colour), fc="none") for name, colour in shown.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))
    _add_scale_bar(axes, slide, columns)
    save(figure, path)


def regions(
    path: str | Path,
    slide: Slide,
    labels: npt.NDArray[Any],
    names: Sequence[str],
    title: str,
    max_side: int = 1600,
) -> None:
    """Draw a slide, uint8, next to the same slide with its classes in colour.

    `labels`, `[h, w]`, are over the whole slide; 0 has no colour. `names` are by class number.
    """
    small = _thumbnail(slide, max_side)
    rows, columns = small.shape[:2]
    places = [np.arange(n) * m // n for n, m in zip((rows, columns), labels.shape, strict=True)]
    sampled = labels[np.ix_(*places)]
    colours = np.array([(0, 0, 0), *COLOURS], np.float32)
    number = np.where(sampled > 0, (sampled.astype(int) - 1) % len(COLOURS) + 1, 0)
    tinted = np.where(sampled[..., None] > 0, 0.55 * small + 0.45 * colours[number], small)
    wide = columns > 1.3 * rows
    figure = Figure(figsize=_figure_size((rows, columns), wide), layout="constrained")
    left, right = figure.subplots(*((2, 1) if wide else (1, 2)))
    _add_title(figure, title)
    left.imshow(small)
    _add_scale_bar(left, slide, columns)
    right.imshow(tinted.astype(np.uint8))
    share = np.bincount(labels.ravel(), minlength=len(names)) / labels.size
    handles = [
        Patch(color=hex_of(COLOURS[(n - 1) % len(COLOURS)]), label=f"{name} {share[n]:.1%}")
        for n, name in enumerate(names)
        if n
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=min(len(handles), 6) or 1)
    for axes in (left, right):
        axes.set_axis_off()
    save(figure, path)


def slide_overlay(
    path: str | Path, slide: Slide, over: Overlay, title: str, max_side: int = 1600
) -> None:
    """Draw a slide, uint8, next to the same slide with an overlay, such as attention."""
    small = _thumbnail(slide, max_side)
    rows, columns = small.shape[:2]
    wide = columns > 1.3 * rows
    figure = Figure(figsize=_figure_size((rows, columns), wide), layout="constrained")
    left, right = figure.subplots(*((2, 1) if wide else (1, 2)))
    _add_title(figure, title)
    left.imshow(small)
    _add_scale_bar(left, slide, columns)
    right.imshow(small)
    width = over.share * columns
    height = (
        width * over.image.shape[0] / over.image.shape[1]
        if over.height is None
        else over.height * rows
    )
    extent = (-0.5, width - 0.5, height - 0.5, -0.5)
    right.imshow(over.image, extent=extent, interpolation="nearest")
    _add_legend(figure, over)
    for axes in (left, right):
        axes.set_axis_off()
        axes.set_xlim(-0.5, columns - 0.5)
        axes.set_ylim(rows - 0.5, -0.5)
    save(figure, path)


def confusion(path: str | Path, counts: npt.ArrayLike, names: Sequence[str], title: str) -> None:
    """Draw a confusion matrix `[classes, classes]`; rows are true, columns predicted classes."""
    counts = np.asarray(counts)
    figure = Figure(figsize=(1.6 + 0.8 * len(names),) * 2, layout="constrained")
    axes = figure.subplots()
    axes.imshow(counts, cmap="Blues", vmin=0)
    for (row, column), number in np.ndenumerate(counts):
        dark = number > counts.max() / 2
        axes.text(column, row, f"{number}", ha="center", va="center", color="w" if dark else "k")
    axes.set_xticks(range(len(names)), names)
    axes.set_yticks(range(len(names)), names)
    axes.set_xlabel("predicted")
    axes.set_ylabel("true")
    axes.set_title(title)
    save(figure, path)


def _thumbnail(slide: Slide, max_side: int) -> npt.NDArray[Any]:
    """A thumbnail as an RGB image `[h, w, 3]`, uint8."""
    small = slide.thumbnail(max_side)
    return np.repeat(small, 3, axis=2) if small.shape[2] == 1 else small[..., :3]


def _add_title(figure: Figure, title: str) -> None:
    """Write a title over all images of a figure, in several lines if it is long."""
    figure.suptitle(
        textwrap.fill(title, int(figure.get_figwidth() * _CHARACTERS)), fontsize="medium"
    )


def _add_legend(figure: Figure, over: Overlay) -> None:
    """Write the legend of an overlay under all images of a figure."""
    handles = [Patch(color=colour, label=text) for colour, text in over.legend]
    figure.legend(handles=handles, title=over.name, loc="outside lower center", ncols=len(handles))


def _add_scale_bar(axes: Axes, slide: Slide, columns: int) -> None:
    """Draw a bar of a round length in the lower left corner, if the pixel size of the slide is known.

    The axes show the whole slide, in so many columns.
    """
    if slide.mpp is None:
        return
    um = slide.mpp[1] * slide.shape[1] / columns  # width of a pixel of the image
    most = 0.2 * columns * um
    power = 10 ** math.floor(math.log10(most))
    length = max(n * power for n in (1, 2, 5) if n * power <= most)
    text = f"{length / 1000:g} mm" if length >= 1000 else f"{length:g} \N{MICRO SIGN}m"
    bar = AnchoredSizeBar(
        axes.transData, length / um, text, "lower left", size_vertical=0.004 * columns
    )
    bar.patch.set(alpha=0.75, edgecolor="none")
    axes.add_artist(bar)


def _figure_size(shape: tuple[int, ...], wide: bool) -> tuple[float, float]:
    """The size in inches of a figure with two images of `shape`, one above the other if `wide`."""
    rows, columns = shape
    width = 10.0 if wide else 5.0
    each = width * rows / columns + 0.4
    return 10.0, 2 * each if wide else each


def save(figure: Figure, path: str | Path) -> None:
    """Write a figure as a PNG file, atomically."""
    with atomic_write(path) as part, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")  # missing for names in other scripts
        figure.savefig(part, dpi=DPI)
