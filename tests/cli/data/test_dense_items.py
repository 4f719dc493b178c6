"""Batches of images with an output for every pixel, and whether crops fit into the images."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from tfbig.cli.data import dense_items
from tfbig.cli.data.run_data import Data, Opened
from tfbig.cli.paths import FlagError
from tfbig.sources import ArraySource, Source


@dataclass(frozen=True)
class Item:
    name: str
    image: Source
    labels: Source
    weights: Source


def item(name: str, rows: int, columns: int = 5) -> Item:
    pixels = np.arange(rows * columns * 2, dtype=np.float32).reshape(rows, columns, 2)
    labels = (pixels[..., :1] > 7).astype(np.uint8)
    return Item(name, *map(ArraySource, (pixels, labels, labels.astype(np.float32))))


ITEMS = [item("a", 4), item("b", 4), item("c", 4)]


@pytest.mark.parametrize("parts", [dense_items.LABELLED, dense_items.WEIGHTED])
def test_batches_hold_what_the_sources_hold(parts: tuple[str, ...]) -> None:
    dense = list(dense_items.dataset(ITEMS, ITEMS[0], parts, 2, dense=True))
    handles = list(dense_items.dataset(ITEMS, ITEMS[0], parts, 2, dense=False))
    assert [len(batch[0]) for batch in dense] == [len(batch[0]) for batch in handles] == [2, 1]
    for place, part in enumerate(parts):
        pixels = np.concatenate([batch[place] for batch in dense])
        named = np.concatenate([batch[place] for batch in handles])
        for each, image, handle in zip(ITEMS, pixels, named, strict=True):
            source = getattr(each, part)
            np.testing.assert_array_equal(image, source.read(0, 4))
            assert image.dtype == source.dtype
            assert handle.decode() == source.handle


@pytest.mark.parametrize("dense", [True, False])
def test_a_worker_without_items_has_the_same_signature(dense: bool) -> None:
    empty = dense_items.dataset([], ITEMS[0], dense_items.WEIGHTED, 2, dense)
    some = dense_items.dataset(ITEMS, ITEMS[0], dense_items.WEIGHTED, 2, dense)
    assert list(empty) == []
    assert empty.element_spec == some.element_spec


def test_names() -> None:
    assert dense_items.names(ITEMS) == "a, b, c"
    assert dense_items.names([item(str(n), 2) for n in range(12)]) == "0 and 11 others"


def test_whole_images_of_one_size_can_be_batched() -> None:
    dense_items.check_batch(ITEMS, 2, "slides")
    dense_items.check_batch([*ITEMS, item("d", 6)], 1, "slides")
    with pytest.raises(
        FlagError, match=r"--batch-size 2: whole slides differ in size\. Use --batch"
    ):
        dense_items.check_batch([*ITEMS, item("d", 6)], 2, "slides")


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ([("a", (8, 8, 3)), ("b", (9, 12))], None),
        ([("a", (8, 8)), ("b", (7, 30))], "b is 7 x 30 pixels, .* Use --crop 4x8 or whole, or"),
        ([("a", (8, 3))], "a is 8 x 3 pixels, smaller than a crop. Use larger images"),
    ],
)
def test_crops_fit(sizes: list[tuple[str, tuple[int, ...]]], message: str | None) -> None:
    if message is None:
        dense_items.check_crop(sizes, (8, 8), 4, " or whole")
        return
    with pytest.raises(FlagError, match=f"--crop 8x8: {message}"):
        dense_items.check_crop(sizes, (8, 8), 4, " or whole")


def test_what_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    data = Data.of([Opened(tuple(each)) for each in (ITEMS[:1], ITEMS[1:2], ITEMS[2:])])
    settings = Namespace(
        test_only=None, mode="offload", precision="float32", seed=3, crop="8x8", crops=5
    )
    dense_items.print_splits(settings, data)
    assert capsys.readouterr().out.splitlines() == [
        "mode offload, precision float32, seed 3",
        "training on 5 crops of 8x8 from a",
        "validating on all of b",
        "testing on all of c",
    ]
    dense_items.print_splits(Namespace(test_only="run"), data)
    assert capsys.readouterr().out == "evaluating run on c\n"


class Counting(ArraySource):
    """Labels that count how many rows are read."""

    def read(self, start: int, stop: int) -> Any:
        reads.append(stop - start)
        return super().read(start, stop)


reads: list[int] = []


def labelled(labels: np.ndarray) -> Namespace:
    return Namespace(labels=Counting(labels[..., None]))


def test_classes_that_no_label_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dense_items, "AT_ONCE", 40)  # four rows
    empty, half, full = (np.zeros((100, 10), np.uint8) for _ in range(3))
    half[:50] = 1
    full[96:] = 2
    assert dense_items.missing_classes([labelled(empty)], 2) == [1]
    assert dense_items.missing_classes([labelled(empty + 1)], 2) == [0]
    assert dense_items.missing_classes([labelled(empty), labelled(half)], 3) == [2]
    assert dense_items.missing_classes([labelled(each) for each in (empty, half, full)], 3) == []
    assert dense_items.missing_classes([], 2) == []
    instances = np.where(half > 0, 700, 0).astype(np.uint16)
    assert dense_items.missing_classes([labelled(instances)], 2) == []
    reads.clear()
    assert dense_items.missing_classes([labelled(half), labelled(empty)], 2) == []
    assert sum(reads) <= 8  # from the middle on, and no longer than needed
    reads.clear()
    dense_items.missing_classes([labelled(empty)], 2)
    assert sum(reads) == 100
