"""Images with an output for every pixel: their batches, their names, and whether crops fit into them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfbig import sources
from tfbig.cli.paths import FlagError
from tfbig.cli.settings.choices import WHOLE
from tfbig.errors import SourceError
from tfbig.system import callbacks

WEIGHTED = ("image", "labels", "weights")
"""Parts of a batch of images whose labels do not count everywhere."""
LABELLED = WEIGHTED[:2]
"""Parts of a batch of other images."""
AT_ONCE = 1 << 22
"""Bytes of labels that are read at once to find their classes."""


def dataset(
    items: Sequence[Any], like: Any, parts: Sequence[str], batch_size: int, dense: bool
) -> tf.data.Dataset:
    """Make batches of images, labels and weights in the given order.

    All items of a batch have one size. `like` has the ranks, channels and types of samples, since there may be no
    items. `parts` are the attributes that are sources: `LABELLED` or `WEIGHTED`. A dense batch holds tensors `[N,
    ..., C]` instead of handles `[N]`.

    The sources of the items must exist as long as the dataset.
    """
    handles = tuple(
        tf.constant([getattr(item, part).handle for item in items], tf.string, [len(items)])
        for part in parts
    )
    data = tf.data.Dataset.from_tensor_slices(handles)
    if dense:
        kinds = [getattr(like, part) for part in parts]
        data = data.map(lambda *each: tuple(map(_dense, each, kinds)))
    return data.batch(batch_size)


def _dense(handle: Any, like: Any) -> Any:
    pixels = callbacks.numpy_function(_read, [handle], tf.as_dtype(like.dtype))
    return tf.ensure_shape(pixels, [None] * (len(like.shape) - 1) + [like.shape[-1]])


def _read(handle: bytes) -> Any:
    source = sources.resolve(handle.decode())
    return source.read(0, source.shape[0])


def names(items: Sequence[Any]) -> str:
    """Name some items, or of more than ten the first and how many others there are."""
    listed = [item.name for item in items]
    return ", ".join(listed) if len(listed) <= 10 else f"{listed[0]} and {len(listed) - 1} others"


def print_splits(settings: Any, data: Any) -> None:
    """Print what is trained, validated and tested on."""
    if settings.test_only:
        print(f"evaluating {settings.test_only} on {names(data.test.items)}", flush=True)
        return
    print(f"mode {settings.mode}, precision {settings.precision}, seed {settings.seed}")
    crops = (
        "all of " if settings.crop == WHOLE else f"{settings.crops} crops of {settings.crop} from "
    )
    print(f"training on {crops}{names(data.train.items)}")
    print(f"validating on all of {names(data.val.items)}", flush=True)
    if data.test.items:
        print(f"testing on all of {names(data.test.items)}", flush=True)


def missing_classes(items: Sequence[Any], count: int) -> list[int]:
    """Find the numbers of the classes that no label has, in order; none without images.

    Numbers above `count`, as of instances, count as the last class.

    Labels are read from the middle of the first image on, until every class was seen: all of them only where one is
    missing. Labels that cannot be read are reported when they are trained on.
    """
    missing = set(range(count)) if items else set()
    for item in items:
        labels, rows = item.labels, item.labels.shape[0]
        at_once = max(AT_ONCE // (labels.nbytes // rows), 1)
        starts = sorted(range(0, rows, at_once), key=lambda start: abs(2 * start + at_once - rows))
        with contextlib.suppress(SourceError):
            for start in starts:
                if not missing:
                    return []
                seen = np.unique(labels.read(start, min(start + at_once, rows)))
                missing -= set(np.minimum(seen, count - 1).astype(int).tolist())
    return sorted(missing)


def check_batch(items: Sequence[Any], batch_size: int, kind: str) -> None:
    """Check that whole images can be batched; `kind` is a plural noun such as "slides".

    Raises:
        FlagError: They differ in size.
    """
    if batch_size > 1 and len({item.image.shape for item in items}) > 1:
        raise FlagError(
            f"--batch-size {batch_size}: whole {kind} differ in size. Use --batch-size 1, and --accumulate to average "
            "gradients."
        )


def check_crop(
    sizes: Iterable[tuple[str, Sequence[int]]],
    crop: tuple[int, int],
    multiple: int,
    whole: str = "",
    part: str = "crop",
) -> None:
    """Check that crops, or patches, fit into images.

    Args:
        sizes: Name, and rows and columns, of each image.
        crop: Rows and columns of a crop.
        multiple: Crops are multiples of this.
        whole: What to say where whole images are another choice, such as " or whole".
        part: What is cut, which the flag `--{part}` sizes; a "patch" is square.

    Raises:
        FlagError: An image is smaller than a crop.
    """

    def given(size: Sequence[int]) -> str:
        return f"--{part} {min(size) if part == 'patch' else f'{size[0]}x{size[1]}'}"

    for name, (rows, columns, *_) in sizes:
        if rows >= crop[0] and columns >= crop[1]:
            continue
        fits = [
            min(n, m) // multiple * multiple for n, m in zip((rows, columns), crop, strict=True)
        ]
        use = f"{given(fits)}{whole}, or remove the image" if all(fits) else "larger images"
        raise FlagError(
            f"{given(crop)}: {name} is {rows} x {columns} pixels, smaller than a {part}. Use {use}."
        )
