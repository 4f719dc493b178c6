"""The tasks of `--task`, each declared once: its settings, what trains it, and how help, reports and cards name it.

A new task is an entry here, a module of settings and a module that trains. This module imports neither, so that help
needs no TensorFlow and reports need no command line.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final

_CLINICAL: Final = "Other scanners, stains, organs, sensors or resolutions"


@dataclass(frozen=True)
class TaskDeclaration:
    """Declaration of a task.

    Attributes:
        title: What is trained, in the help of `--task`.
        product: What a trained model gives, in its card.
        settings: Module and class of the settings.
        trainer: Module and class of the `Task` that trains.
        table: Name of the table in a folder of data.
        items: What the items of the data are: "slides", "images", "scenes" or "volumes".
        reads_table: Whether `--data` is the table itself, not the folder that it is in.
        shifts: What may give worse results, in the card.
        is_clinical: Whether a card says that results are no diagnosis.
    """

    title: str
    product: str
    settings: str
    trainer: str
    table: str
    items: str = "slides"
    reads_table: bool = False
    shifts: str = _CLINICAL
    is_clinical: bool = True

    def settings_class(self) -> Any:
        """Import and return the class of the settings."""
        return _imported(self.settings)

    def new_trainer(self) -> Any:
        """Import what trains, and return a new one."""
        return _imported(self.trainer)()


TASKS: Final[Mapping[str, TaskDeclaration]] = {
    "segmentation": TaskDeclaration(
        title="masks of slides",
        product="masks of images",
        settings="tfbig.cli.settings.tasks:SegmentationSettings",
        trainer="tfbig.cli.tasks.segmentation:Segmentation",
        table="slides.csv",
    ),
    "mil": TaskDeclaration(
        title="a label for the tiles of each slide",
        product="one result for a bag of tiles",
        settings="tfbig.cli.settings.tasks:MILSettings",
        trainer="tfbig.cli.tasks.mil:MIL",
        table="bags.csv",
    ),
    "images": TaskDeclaration(
        title="a label for each image, from the whole image or by patches (--mode patchgd)",
        product="one result for a large image",
        settings="tfbig.cli.settings.tasks:ImageSettings",
        trainer="tfbig.cli.tasks.images:ImageTask",
        table="images.csv",
        items="images",
    ),
    "patchgd-segmentation": TaskDeclaration(
        title="masks of images, by patches",
        product="masks of large images",
        settings="tfbig.cli.settings.patchgd_segmentation_settings:PatchGDSegmentationSettings",
        trainer="tfbig.cli.tasks.patchgd_segmentation:PatchGDSegmentationTask",
        table="images.csv",
        items="images",
    ),
    "volume-segmentation": TaskDeclaration(
        title="masks of volumes",
        product="masks of volumes",
        settings="tfbig.cli.settings.volume_segmentation_settings:VolumeSegmentationSettings",
        trainer="tfbig.cli.tasks.volume_segmentation:VolumeSegmentation",
        table="volumes.csv",
        items="volumes",
        shifts="Other scanners, protocols, organs or resolutions",
    ),
    "scenes": TaskDeclaration(
        title="masks of satellite scenes",
        product="masks of satellite scenes",
        settings="tfbig.cli.settings.scene_settings:SceneSettings",
        trainer="tfbig.cli.tasks.scenes:Scenes",
        table="scenes.csv",
        items="scenes",
        reads_table=True,
        shifts="Other places, seasons, sensors, bands or resolutions",
        is_clinical=False,
    ),
    "instances": TaskDeclaration(
        title="objects in images, such as nuclei",
        product="outlines of objects in images",
        settings="tfbig.cli.settings.instance_settings:InstanceSettings",
        trainer="tfbig.cli.tasks.instances:InstancesTask",
        table="images.csv",
        items="images",
    ),
}
"""Every task by its name; the first is the default."""
DEFAULT: Final = next(iter(TASKS))
"""The task that is trained without `--task`."""
UNKNOWN: Final = TaskDeclaration("", "", "", "", "")
"""Declaration of a task that this version does not have."""


def declared(name: object) -> TaskDeclaration:
    """The declaration of a task, as the settings of a run name it, or `UNKNOWN`."""
    return TASKS.get(str(name), UNKNOWN)


def _imported(place: str) -> Any:
    """Import the class of a `module:class`."""
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)
