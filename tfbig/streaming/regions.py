"""Rectangles of an image that a streamed model predicts alone, with the pixels of a prediction of the whole image."""

from __future__ import annotations

from collections.abc import Sequence
from math import lcm

from tfbig.geometry.windows import Interval
from tfbig.plan import regions
from tfbig.streaming.model import StreamedModel

Bounds = tuple[int, int]
"""First row or column, and the one after the last."""


def region(
    model: StreamedModel, size: Sequence[int], rows: Bounds, columns: Bounds
) -> tuple[Bounds, Bounds] | None:
    """Return the rectangle of an image from which a rectangle of its prediction is computed.

    The prediction of this rectangle alone has the same pixels there as that of the whole image: every layer reads the
    same pixels and the same padding. So an image can be predicted in parts, without seams and without blending.

    Args:
        model: A model with one image as input and one as output.
        size: Rows and columns of the image.
        rows: `(start, stop)` of the prediction.
        columns: `(start, stop)` of the prediction.

    Returns:
        `(start, stop)` of the rows and of the columns; None if the model depends on statistics of the whole image.

    Example:
        >>> from tfbig.streaming.regions import region
        >>> image = keras.Input((None, None, 1))
        >>> big = tfbig.stream(keras.Model(image, keras.layers.Conv2D(1, 5, padding="same")(image)))
        >>> region(big, (100, 100), (40, 60), (0, 10))
        ((38, 62), (0, 12))
    """
    graph = model.prediction_graph()
    if graph is None:
        return None
    found = regions.read_for(graph, (size[0], size[1]), (Interval(*rows), Interval(*columns)))
    if found is None:
        return None
    (top, bottom), (left, right) = found
    return (int(top), int(bottom)), (int(left), int(right))


def step(model: StreamedModel) -> int | None:
    """Return the number of which the rows and columns of an image should be a multiple; None as for `region`.

    Args:
        model: A model with one image as input and one as output.
    """
    graph = model.prediction_graph()
    steps = None if graph is None else regions.step(graph)
    return None if steps is None else lcm(*steps)
