"""Every task is declared once, and what it names exists."""

from __future__ import annotations

import pytest

from tfbig.cli.settings.run_settings import RunSettings
from tfbig.cli.tasks.task import Task
from tfbig.tasks import DEFAULT, TASKS, UNKNOWN, TaskDeclaration, declared


@pytest.mark.parametrize(("name", "task"), TASKS.items())
def test_what_a_task_names_exists(name: str, task: TaskDeclaration) -> None:
    settings = task.settings_class()
    assert issubclass(settings, RunSettings)
    assert settings().task == name
    assert settings.EXAMPLE
    assert isinstance(task.new_trainer(), Task)
    assert task.table.endswith(".csv")
    assert all((task.title, task.product, task.items, task.shifts))


def test_tasks_of_run_folders() -> None:
    assert declared("scenes") is TASKS["scenes"]
    assert declared(DEFAULT) is TASKS["segmentation"]
    for unknown in ("of a later version", None, 3):
        assert declared(unknown) is UNKNOWN
    assert UNKNOWN.items == "slides" and not UNKNOWN.product
