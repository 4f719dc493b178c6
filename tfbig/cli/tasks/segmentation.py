"""Train the gigapixel U-Net to tell tissue from background on whole slides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import keras

import tfbig
from tfbig.cli import machine, paths
from tfbig.cli.data import slides_and_masks
from tfbig.cli.data.slides_and_masks import LabelledSlide
from tfbig.cli.settings.tasks import SegmentationSettings
from tfbig.cli.settings.value_types import crop_size
from tfbig.cli.settings.yaml_flags import read_yaml
from tfbig.cli.tasks import classifier_training, segmentation_results
from tfbig.cli.tasks.task import Curve, History, Models, Plans, Task
from tfbig.metrics import Dice
from tfbig.models.gigapixel_unet import gigapixel_unet
from tfbig.results import run_folder
from tfbig.training import Epochs

LOSS = "binary_crossentropy"
EXAMPLE_DATA = Path(__file__).parents[3] / "examples" / "data"


@dataclass(frozen=True)
class SegmentationData:
    """Crops to train on, and whole slides.

    Attributes:
        crops: Crops of the training slides; none in an evaluation.
        whole: The slide for validation, or the slides of an evaluation.
        failed: `(name, reason)` of slides that were skipped.
        table: Not used.
        decided: Not used.
    """

    crops: tuple[LabelledSlide, ...]
    whole: tuple[LabelledSlide, ...]
    failed: tuple[tuple[str, str], ...]
    table: tuple[Mapping[str, Any], ...] = ()
    decided: Mapping[str, Any] = field(default_factory=dict)


class Segmentation(Task[SegmentationSettings, SegmentationData]):
    """`--task segmentation`."""

    measured = ("loss", "val_loss", "dice", "val_dice", "seconds_per_step")

    def resolved(self, settings: SegmentationSettings) -> SegmentationSettings:
        """Return the settings with the slides of the checkout, if there are no others.

        Raises:
            FlagError: There is no `--data`, and no checkout with examples.
        """
        if settings.data is None and not EXAMPLE_DATA.is_dir():
            raise paths.FlagError(
                "--data FOLDER is missing: the folder of your slides, such as --data my_slides. Only a checkout of "
                "tfbig has slides of its own, in examples/data. For other data: --task mil --help, --task patchgd "
                "--help."
            )
        return replace(settings, data=settings.data or str(EXAMPLE_DATA))

    def load(self, settings: SegmentationSettings) -> SegmentationData:
        """Return crops and slides, and print what they are."""
        return _test_slides(settings) if settings.test_only else _training_slides(settings)

    def models(self, settings: SegmentationSettings, data: SegmentationData) -> Models:
        """Return new models; the plain one is compiled without metrics, so that any Keras can load it."""
        models = make_both(settings)
        optimizer = make_optimizer(settings)
        models.twin.compile(optimizer, LOSS)
        models.model.compile(optimizer, LOSS, metrics=[Dice()])
        return models

    def plans(
        self, models: Models, settings: SegmentationSettings, data: SegmentationData
    ) -> Plans | None:
        """Return the plans of a step; plain Keras is a plan of one strip."""
        if settings.test_only:
            return None
        shape = (settings.batch_size, *crop_size(settings.crop), 1)
        whole = (1, *data.whole[0].padded().image.shape)
        return Plans(plan_of(models, shape), plan_of(models, whole, training=False))

    def fit(
        self,
        models: Models,
        settings: SegmentationSettings,
        data: SegmentationData,
        folder: Path,
    ) -> History:
        """Train from the last checkpoint, and return the history of all epochs."""
        epochs, validation = _epochs(settings, data)
        return classifier_training.fit(models.model, settings, folder, epochs, validation)

    def curve(self, settings: SegmentationSettings) -> Curve:
        """Return what the learning curve shows."""
        return Curve({"loss": "binary cross-entropy", "dice": "Dice"}, "unseen slide")

    def write_results(
        self,
        models: Models,
        settings: SegmentationSettings,
        data: SegmentationData,
        folder: Path,
        measured: Mapping[str, Any],
    ) -> None:
        """Write pictures, and last the metrics."""
        if settings.test_only:
            segmentation_results.write_evaluation(models, settings, data.whole, folder)
        else:
            slide = data.whole[0]
            segmentation_results.write_training(models, settings, slide, folder, measured)


def _training_slides(settings: SegmentationSettings) -> SegmentationData:
    """Return crops of all slides but the last, and that one."""
    (*training, held_out), failed = slides_and_masks.open_slides(settings.data or "", least=2)
    size = crop_size(settings.crop)
    crops = slides_and_masks.random_crops(training, size, settings.crops, settings.seed)
    names = ", ".join(slide.name for slide in training)
    rows, columns = held_out.image.shape[:2]
    print(f"mode {settings.mode}, precision {settings.precision}, seed {settings.seed}")
    print(f"training on {settings.crops} crops of {settings.crop} from {names}")
    print(f"validating on all of {held_out.name}, {rows}x{columns}, which is not trained on")
    return SegmentationData(tuple(crops), (held_out,), tuple(failed))


def _test_slides(settings: SegmentationSettings) -> SegmentationData:
    """Return the slides of an evaluation: of the folder that the run was trained on, the last."""
    config = read_yaml(Path(settings.test_only or "") / run_folder.CONFIG)
    slides, failed = slides_and_masks.open_slides(settings.data or "")
    if Path(config["data"]).resolve() == Path(settings.data or "").resolve():
        slides = slides[-1:]
    names = ", ".join(slide.name for slide in slides)
    print(f"evaluating {settings.test_only} on {names}", flush=True)
    return SegmentationData((), tuple(slides), tuple(failed))


def make_both(settings: SegmentationSettings) -> Models:
    """Return new models, initialised from the seed."""
    keras.config.set_dtype_policy(settings.precision)
    keras.utils.set_random_seed(settings.seed)
    twin = machine.synchronize_norm(settings, gigapixel_unet())
    return Models(twin if machine.is_plain(settings) else _stream(twin, settings), twin)


def _stream(twin: Any, settings: SegmentationSettings) -> Any:
    """Return the model streamed strip by strip, with the same variables."""
    return tfbig.stream(twin, machine.budget(settings), devices=settings.devices)


def make_optimizer(settings: SegmentationSettings) -> keras.optimizers.Optimizer:
    """Return Adam with damped steps: with Keras' defaults, rounding errors grow 1000 times in a few hundred steps.

    Damped, both modes end a run with the same loss, and no step undoes what was learned. The learning rate decreases
    to 0 along a cosine.
    """
    schedule = keras.optimizers.schedules.CosineDecay(
        settings.lr, _steps_per_epoch(settings) * settings.epochs
    )
    return keras.optimizers.Adam(schedule, beta_1=0.8, epsilon=1e-3, global_clipnorm=0.3)


def _steps_per_epoch(settings: SegmentationSettings) -> int:
    """Return the number of batches of all crops; the last may be smaller."""
    return -(-settings.crops // settings.batch_size)


def plan_of(models: Models, shape: tuple[int, ...], training: bool = True) -> Any:
    """Return the plan of a step.

    Args:
        models: Compiled models.
        shape: Shape of a batch.
        training: Whether to plan a training step, else a validation step.
    """
    model, twin = models
    if model is twin:
        model = tfbig.stream(twin, tfbig.Budget("1TB", "1TB"), strip_rows=shape[1])
        model.compile(loss=LOSS)
    return model.plan(shape, training)


def _epochs(settings: SegmentationSettings, data: SegmentationData) -> tuple[Epochs, Epochs]:
    """Return the crops to train on, and the slide for validation."""
    dense, crops, whole = machine.is_plain(settings), data.crops, [data.whole[0].padded()]

    def batches(shard: Any) -> Any:
        chosen = [crops[i] for i in shard.items(len(crops), settings.batch_size)]
        return slides_and_masks.dataset(chosen, settings.batch_size, dense)

    def validation(shard: Any) -> Any:
        return slides_and_masks.dataset([whole[i] for i in shard.items(1, 1)], 1, dense)

    names = [f"{crop.name} {crop.image.shape} {Path(crop.labels.name).name}" for crop in crops]
    return Epochs(_steps_per_epoch(settings), batches, names), Epochs(1, validation)
