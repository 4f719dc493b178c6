"""What the tasks with an output for every pixel share: means over images, and how they keep to one order."""

from __future__ import annotations

import pytest

from tfbig.cli.tasks.dense_task import DenseTask, over_items
from tfbig.tasks import TASKS

DENSE = [name for name, task in TASKS.items() if isinstance(task.new_trainer(), DenseTask)]


def test_means_over_the_images_in_which_a_column_is_defined() -> None:
    rows = [
        {"slide": "a", "dice": 0.9, "dice_vein": None, "pixels": 3},
        {"slide": "b", "dice": 0.7, "dice_vein": 0.5, "pixels": 4},
        {"slide": "c", "dice": None, "dice_vein": None, "pixels": 5},
    ]
    results = over_items(rows, ("dice", "dice_*"))
    assert list(results) == ["test_dice", "test_dice_vein", "test_dice_std", "test_dice_vein_std"]
    assert results == pytest.approx(
        {"test_dice": 0.8, "test_dice_vein": 0.5, "test_dice_std": 0.1, "test_dice_vein_std": 0}
    )
    assert over_items(rows[:1], ("dice", "dice_*")) == {"test_dice": 0.9}
    assert over_items(rows, ("dice",)).keys() == {"test_dice", "test_dice_std"}


def test_five_tasks_are_dense() -> None:
    assert set(DENSE) == set(TASKS) - {"mil", "images"}


@pytest.mark.parametrize("name", DENSE)
def test_a_dense_task_leaves_the_order_of_a_run_to_its_base(name: str) -> None:
    task = type(TASKS[name].new_trainer())
    shared = ("models", "fit", "write_results", "epochs_of", "steps", "_batches")
    assert all(getattr(task, each) is getattr(DenseTask, each) for each in shared)
