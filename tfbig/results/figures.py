"""PNG pictures: the learning curve, tiles, masks laid over a slide, attention over a bag, latent grids, confusion."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from tfbig.results.geojson import COLOURS, hex_of
from tfbig.results.slide_viewer import Overlay
from tfbig.sources import Bag, Coords, Slide, Source, Tiles
from tfbig.sources.bags.bag import resize
from tfbig.sources.writing import beside
from tfbig.tissue.masks import Tissue

RIGHT, FALSE, MISSED = COLOURS[:3]

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


def learning_curve(
    path: str | Path,
    history: Sequence[Mapping[str, float]],
    labels: Mapping[str, str] = MappingProxyType({"loss": "binary cross-entropy", "dice": "Dice"}),
    unseen: str = "unseen slide",
) -> None:
    """Draws columns of a history over the epochs, those of training and of validation together.

    Args:
        path: PNG file to write.
        history: Rows with `epoch`, and each column of `labels` with and without `val_` in front.
        labels: Columns to draw, and what they are.
        unseen: What validation is on.
    """
    epochs = [row["epoch"] for row in history]
    figure = Figure(figsize=(4.5 * len(labels), 3.5), layout="constrained")
    all_axes = figure.subplots(1, len(labels), squeeze=False)[0]
    for axes, (name, label) in zip(all_axes, labels.items(), strict=True):
        axes.plot(epochs, [row[name] for row in history], "o-", label="training")
        axes.plot(epochs, [row[f"val_{name}"] for row in history], "s-", label=unseen)
        axes.set_xlabel("epoch")
        axes.set_ylabel(label)
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.grid(alpha=0.3)
        axes.legend()
    _save(figure, path)


def attention_map(
    path: str | Path, bag: Bag, attention: npt.NDArray[Any], title: str, max_side: int = 1200
) -> None:
    """Draws the instances of a bag where they lie, and beside them what a model looked at.

    Instances without coordinates lie in rows from left to right. Those that `bag.labels` calls keys have a green frame.

    Args:
        path: PNG file to write.
        bag: Tiles `[n, H, W, C]` of uint8, or features `[n, d]`, which are grey.
        attention: `[n]`; drawn as shares of the largest.
        title: Line above the picture.
        max_side: Most rows and columns of a picture.

    Raises:
        ValueError: There is not one number for each instance.
    """
    count = bag.shape[0]
    if np.shape(attention) != (count,):
        raise ValueError(
            f"{bag.name}: attention of shape {np.shape(attention)} for {count} instances."
        )
    canvas, places, side = instances(bag, max_side)
    rows, columns = canvas.shape[:2]
    share = np.asarray(attention, np.float32) / max(float(np.max(attention)), 1e-30)
    heat = np.nan_to_num(by_place(places, side, share))
    wide = columns > 1.3 * rows
    figure = Figure(figsize=_figure_size((rows, columns), wide), layout="constrained")
    first, second = figure.subplots(*((2, 1) if wide else (1, 2)))
    first.imshow(canvas)
    first.set_title(title)
    second.imshow(canvas)
    image = second.imshow(heat, cmap="inferno", vmin=0, vmax=1, alpha=0.65)
    second.set_title(f"attention, largest {float(np.max(attention)):.3g} of 1")
    figure.colorbar(image, ax=second, shrink=0.6)
    keys = places[np.asarray(bag.labels, bool)] if bag.labels is not None else ()
    for axes in (first, second):
        axes.set_axis_off()
        for top, left in keys:
            frame = Rectangle((left, top), side - 1, side - 1, fill=False, lw=1.2)
            frame.set_edgecolor((RIGHT[0] / 255, RIGHT[1] / 255, RIGHT[2] / 255))
            axes.add_patch(frame)
    _save(figure, path)


def instances(
    bag: Bag, max_side: int = 4096
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64], int]:
    """The instances of a bag where they lie, on white.

    Args:
        bag: As in `attention_map`.
        max_side: Most rows and columns of the picture; an instance has at most 64.

    Returns:
        The picture `[h, w, 3]`, top and left of each instance in it `[n, 2]`, and their side.
    """
    places, side = _places(bag, max_side)
    rows, columns = places.max(0) + side
    canvas = np.full((rows, columns, 3), 255, np.uint8)
    for i, (top, left) in enumerate(places):
        canvas[top : top + side, left : left + side] = _tile(bag, i, side)
    return canvas, places, side


def by_place(
    places: npt.NDArray[Any], side: int, values: npt.NDArray[Any]
) -> npt.NDArray[np.float32]:
    """Numbers of instances `[n]` where `instances` has them, `[h, w]`, NaN where there is none."""
    found = np.full(places.max(0) + side, np.nan, np.float32)
    for (top, left), value in zip(places, values, strict=True):
        found[top : top + side, left : left + side] = value
    return found


def latent_grid(path: str | Path, image: Source, z: npt.NDArray[Any], title: str) -> None:
    """Draws an image and beside it its latent grid, whose first three principal components are red, green and blue.

    Patches of like colours have like codes.

    Args:
        path: PNG file to write.
        image: `[H, W, 1 or 3]` of uint8.
        z: `[rows, columns, d]`.
        title: Line above the picture.
    """
    rows, columns, width = z.shape
    flat = z.reshape(-1, width).astype(np.float64)
    flat = flat - flat.mean(0)
    _, _, axes_of_z = np.linalg.svd(flat, full_matrices=False)
    found = np.zeros((len(flat), 3))
    found[:, : min(3, len(axes_of_z))] = flat @ axes_of_z[:3].T
    spread = np.maximum(abs(found).max(0), 1e-30)
    colours = (0.5 + found / spread / 2).reshape(rows, columns, 3)
    small = thumbnail(image)
    small = np.repeat(small, 3, axis=2) if small.shape[2] == 1 else small
    wide = small.shape[1] > 1.3 * small.shape[0]
    figure = Figure(figsize=_figure_size(small.shape[:2], wide), layout="constrained")
    first, second = figure.subplots(*((2, 1) if wide else (1, 2)))
    first.imshow(small)
    first.set_title(title)
    second.imshow(colours, interpolation="nearest")
    second.set_title(f"latent grid, {rows} x {columns} codes of {width}")
    for axes in (first, second):
        axes.set_axis_off()
    _save(figure, path)


def _places(bag: Bag, max_side: int) -> tuple[npt.NDArray[Any], int]:
    """Top and left of every instance, `[n, 2]`, and their side, in pixels of the picture."""
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
    """Most frequent distance of neighbours; the last of a row may be nearer."""
    steps = np.concatenate([np.diff(np.unique(axis)) for axis in corners.T])
    found, counts = np.unique(steps, return_counts=True)
    return int(found[counts.argmax()]) if len(found) else 1


def _tile(bag: Bag, index: int, side: int) -> npt.NDArray[Any]:
    """An instance as a square `[side, side, 3]`, or grey where it is no picture."""
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
    """Draws where the tiles of a slide lie, and what was taken for tissue.

    Args:
        path: PNG file to write.
        slide: The slide, uint8.
        coords: Of its tiles.
        title: Line above the picture.
        tissue: Its outline is drawn.
        max_side: Most rows and columns of the picture of the slide.
    """
    picture = _thumbnail(slide, max_side)
    rows, columns = picture.shape[:2]
    steps = slide.shape[1] / columns, slide.shape[0] / rows
    inches = 10 / max(rows, columns)
    figure = Figure(figsize=(max(columns * inches, 4), rows * inches + 0.4), layout="constrained")
    axes = figure.subplots()
    axes.imshow(picture)
    if tissue is not None:
        height, width = tissue.mask.shape
        across, down = (np.arange(n) + 0.5 for n in (width, height))
        where = across * columns / width - 0.5, down * rows / height - 0.5
        axes.contour(*where, tissue.mask, [0.5], colors=[hex_of(RIGHT)], linewidths=0.8)
    side = coords.size_at_level_0
    corners = np.array([(0, 0), (side, 0), (side, side), (0, side)])
    squares = (coords.coords[:, None] + corners) / steps - 0.5
    edges = PolyCollection(squares, facecolors="none", edgecolors=hex_of(FALSE), linewidths=0.6)
    axes.add_collection(edges)
    axes.set_axis_off()
    axes.set_title(title)
    _save(figure, path)


def regions(
    path: str | Path,
    slide: Slide,
    labels: npt.NDArray[Any],
    names: Sequence[str],
    title: str,
    max_side: int = 1600,
) -> None:
    """Draws a slide with its classes in colour, and the same without.

    Args:
        path: PNG file to write.
        slide: The slide, uint8.
        labels: Classes `[h, w]` over the whole slide; 0 has no colour.
        names: Of the classes, by their numbers.
        title: Line above the picture.
        max_side: Most rows and columns of the picture of the slide.
    """
    picture = _thumbnail(slide, max_side)
    rows, columns = picture.shape[:2]
    places = [np.arange(n) * m // n for n, m in zip((rows, columns), labels.shape, strict=True)]
    own = labels[np.ix_(*places)]
    colours = np.array([(0, 0, 0), *COLOURS], np.float32)
    number = np.where(own > 0, (own.astype(int) - 1) % len(COLOURS) + 1, 0)
    tinted = np.where(own[..., None] > 0, 0.55 * picture + 0.45 * colours[number], picture)
    wide = columns > 1.3 * rows
    figure = Figure(figsize=_figure_size((rows, columns), wide), layout="constrained")
    left, right = figure.subplots(*((2, 1) if wide else (1, 2)))
    left.imshow(picture)
    left.set_title(title)
    right.imshow(tinted.astype(np.uint8))
    share = np.bincount(labels.ravel(), minlength=len(names)) / labels.size
    handles = [
        Patch(color=hex_of(COLOURS[(n - 1) % len(COLOURS)]), label=f"{name} {share[n]:.1%}")
        for n, name in enumerate(names)
        if n
    ]
    right.legend(handles=handles, loc="upper right")
    for axes in (left, right):
        axes.set_axis_off()
    _save(figure, path)


def overlaid(
    path: str | Path, slide: Slide, over: Overlay, title: str, max_side: int = 1600
) -> None:
    """Draws a slide, and beside it what lies over it, such as attention.

    Args:
        path: PNG file to write.
        slide: The slide, uint8.
        over: Colours over the whole slide.
        title: Line above the picture.
        max_side: Most rows and columns of the picture of the slide.
    """
    picture = _thumbnail(slide, max_side)
    rows, columns = picture.shape[:2]
    wide = columns > 1.3 * rows
    figure = Figure(figsize=_figure_size((rows, columns), wide), layout="constrained")
    left, right = figure.subplots(*((2, 1) if wide else (1, 2)))
    left.imshow(picture)
    left.set_title(title)
    right.imshow(picture)
    width = over.share * columns
    height = width * over.picture.shape[0] / over.picture.shape[1]
    extent = (-0.5, width - 0.5, height - 0.5, -0.5)
    right.imshow(over.picture, extent=extent, interpolation="nearest")
    handles = [Patch(color=colour, label=text) for colour, text in over.legend]
    right.set_title(over.name)
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))
    for axes in (left, right):
        axes.set_axis_off()
        axes.set_xlim(-0.5, columns - 0.5)
        axes.set_ylim(rows - 0.5, -0.5)
    _save(figure, path)


def confusion(path: str | Path, counts: npt.ArrayLike, names: Sequence[str], title: str) -> None:
    """Draws a confusion matrix.

    Args:
        path: PNG file to write.
        counts: `[classes, classes]`; rows are true, columns predicted.
        names: Of the classes.
        title: Line above the picture.
    """
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
    _save(figure, path)


def _thumbnail(slide: Slide, max_side: int) -> npt.NDArray[Any]:
    """RGB, uint8, `[h, w, 3]`."""
    picture = slide.thumbnail(max_side)
    return np.repeat(picture, 3, axis=2) if picture.shape[2] == 1 else picture[..., :3]


def _figure_size(shape: tuple[int, ...], wide: bool) -> tuple[float, float]:
    """Inches for two pictures of `shape`, one above the other if `wide`."""
    rows, columns = shape
    across = 10.0 if wide else 5.0
    each = across * rows / columns + 0.4
    return 10.0, 2 * each if wide else each


def _save(figure: Figure, path: str | Path) -> None:
    with beside(path) as part, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")  # of names in other scripts
        figure.savefig(part, dpi=120)
