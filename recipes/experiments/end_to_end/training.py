"""Train one way on one task for a budget of processor time, and continue where a run was interrupted.

frozen    the head learns from features of all tiles, of an encoder that is trained before, and then fixed
sampling  encoder and head learn together from a quarter of the tiles, drawn anew in each step
tiles     encoder and head learn together from all tiles
whole     encoder and head learn together, and the encoder sees the image as a whole, streamed
skipped   the same on slides, of which only the tissue is computed
computed  the same on slides, of which everything is computed
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import keras
import numpy as np
from sklearn.metrics import roc_auc_score

from recipes.experiments.end_to_end import networks, parts
from recipes.experiments.end_to_end.plan import SLIDE_WAYS, Look, Run, Setting, is_perfect

LOOKS = 12
"""Evaluations on the validation images in a budget."""

Array = np.ndarray[Any, np.dtype[Any]]
Clock = Callable[[], float]


@dataclass
class Progress:
    """Progress of a run: what is saved besides weights.

    Args:
        spent: Processor seconds of training so far; those of evaluations, and of features, are not counted.
        wall: Seconds so far, evaluations included.
        steps: Steps so far.
        looks: What was found in each evaluation: seconds, steps, epochs, and AUC on the validation images.
        random: State of the random numbers.
    """

    spent: float = 0.0
    wall: float = 0.0
    steps: int = 0
    looks: list[Look] = field(default_factory=list)
    random: dict[str, Any] = field(default_factory=dict)


# --------------------------------------------------------------------------------------- training


def scores(model: keras.Model, part: parts.Part, size: int) -> Array:
    """Return the logits of all images, `[m]`."""
    x = part.stains[0]
    batches = [parts.tensor(x[i : i + size]) for i in range(0, len(x), size)]
    return np.concatenate([np.asarray(model.predict_on_batch(b)) for b in batches])[:, 0]


def auc(model: keras.Model, part: parts.Part, size: int) -> float:
    """Return the area under the ROC curve."""
    return round(float(roc_auc_score(part.labels[:, 0], scores(model, part, size))), 4)


def order_of_epoch(run: Run, epoch: int, number: int) -> Array:
    """Return batches of the numbers of images, `[steps, batch]`, in the order of an epoch."""
    size = parts.batch_size(run)
    order = np.random.default_rng([run.seed, 2, epoch]).permutation(number)
    return order[: number // size * size].reshape(-1, size)


def model_of(run: Run) -> keras.Model:
    """Return the model of a run, compiled, with weights of its seed."""
    keras.utils.set_random_seed(run.seed)
    make = {
        **dict.fromkeys(("whole", *SLIDE_WAYS), networks.whole_model),
        **dict.fromkeys(("sampling", "tiles"), networks.tile_model),
        "frozen": networks.bag_head,
    }
    model = make[run.way](run.head)
    optimizer = keras.optimizers.Adam(run.rate)
    optimizer.build(model.trainable_variables)
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    model.compile(optimizer, loss, jit_compile=False)
    return model


class Training:
    """A run as it goes on: model, progress, and a folder from which it can be continued.

    Args:
        run: What to train.
        seconds: Budget of processor seconds.
        train: What to learn from.
        validation: What evaluations are made on.
        folder: Where to save; two files, replaced in each evaluation.
        clock: Function that returns the time in seconds.
    """

    def __init__(
        self,
        run: Run,
        seconds: float,
        train: parts.Part,
        validation: parts.Part,
        folder: Path,
        clock: Clock = time.process_time,
    ) -> None:
        self.run, self.seconds, self.train, self.validation = run, seconds, train, validation
        self.folder, self.clock = folder, clock
        self.model, self.since = model_of(run), time.monotonic()
        self.rng = np.random.default_rng([run.seed, 3])
        self.progress = Progress()
        self.best = self.variables()
        self.epoch_steps = len(train.labels) // parts.batch_size(run)
        if self.saved.exists():
            self.restore()

    @property
    def saved(self) -> Path:
        """The file of the state."""
        return self.folder / "state.npz"

    def variables(self) -> list[Array]:
        """Return all numbers that a step changes: weights, statistics and the state of the optimizer."""
        return [np.array(v) for v in (*self.model.variables, *self.model.optimizer.variables)]

    def assign(self, values: list[Array]) -> None:
        """Set what `variables` returned."""
        own = (*self.model.variables, *self.model.optimizer.variables)
        for variable, value in zip(own, values, strict=True):
            variable.assign(value)

    def save(self) -> None:
        """Write the state beside the last one, and replace it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.progress.random = self.rng.bit_generator.state
        groups = {"now": self.variables(), "best": self.best}
        arrays = {f"{name}{i:03d}": v for name, all_ in groups.items() for i, v in enumerate(all_)}
        fresh = self.folder / "fresh.npz"
        np.savez(fresh, progress=json.dumps(asdict(self.progress)), **arrays)
        fresh.replace(self.saved)

    def restore(self) -> None:
        """Continue from the file."""
        with np.load(self.saved) as file:
            self.progress = Progress(**json.loads(str(file["progress"])))
            now, self.best = (
                [file[key] for key in sorted(file.files) if key.startswith(name)]
                for name in ("now", "best")
            )
        self.assign(now)
        self.rng.bit_generator.state = self.progress.random

    def warm(self) -> None:
        """Trace the step and the prediction, whose time is not counted, and leave everything as it was."""
        before = self.variables()
        x = parts.batch_of(
            self.run, self.train, np.arange(parts.batch_size(self.run)), np.random.default_rng(0)
        )
        self.model.train_on_batch(x, self.train.labels[: len(x)])
        self.assign(before)

    def step(self) -> None:
        """Take one step."""
        epoch, number = divmod(self.progress.steps, self.epoch_steps)
        chosen = order_of_epoch(self.run, epoch, len(self.train.labels))[number]
        x = parts.batch_of(self.run, self.train, chosen, self.rng)
        self.model.train_on_batch(x, self.train.labels[chosen])
        self.progress.steps += 1

    def is_due(self) -> bool:
        """Say whether to look: at every twelfth of the budget, and after 1, 2, 4, ... epochs."""
        looks = self.progress.looks
        last = looks[-1]["seconds"] if looks else 0.0
        passed = int(LOOKS * self.progress.spent / self.seconds) > int(LOOKS * last / self.seconds)
        epochs, rest = divmod(self.progress.steps, self.epoch_steps)
        return passed or (rest == 0 and epochs & (epochs - 1) == 0)

    def look(self) -> None:
        """Evaluate on the validation images, keep the weights if they are the best, and save."""
        found = auc(self.model, self.validation, parts.batch_size(self.run))
        if found > max((look["auc"] for look in self.progress.looks), default=0.0):
            self.best = self.variables()
        epochs = round(self.progress.steps / self.epoch_steps, 3)
        look = {"seconds": round(self.progress.spent, 2), "steps": self.progress.steps}
        self.progress.looks.append(look | {"epochs": epochs, "auc": found})
        self.progress.wall += time.monotonic() - self.since
        self.since = time.monotonic()
        self.save()

    def is_over(self) -> bool:
        """Say whether the budget is spent, or the last three looks were perfect, so that no weights can be better."""
        return self.progress.spent >= self.seconds or is_perfect(self.progress.looks)

    def go_on(self) -> list[Look]:
        """Train until it is over, and return the looks."""
        self.warm()
        while not self.is_over():
            start = self.clock()
            self.step()
            self.progress.spent += self.clock() - start
            if self.is_due():
                self.look()
        return self.progress.looks


# -------------------------------------------------------------------------------------------- run


def tests(run: Run, setting: Setting, training: Training, network: keras.Model | None) -> Look:
    """Return the AUC of the best weights on the test images, and on the same in the stain of another laboratory."""
    training.assign(training.best)
    size = parts.batch_size(run)
    seen = parts.tests(run, setting, network)
    found = {name: auc(training.model, part, size) for name, part in seen.items()}
    for part in seen.values():
        parts.release(part)
    return found


def finish(run: Run, setting: Setting, folder: Path) -> dict[str, Any]:
    """Train a run to the end, and return its figures; only a final run sees the test images, once.

    Args:
        run: What to train.
        setting: Sizes and budgets.
        folder: Where states and encoders are kept; what is there is continued.
    """
    network, figures = None, {}
    if run.way == "frozen":
        network, seconds = parts.encoded(run, setting, folder / "encoders")
        figures["pretraining"] = round(seconds, 1)
    seen = [make(run, setting, network) for make in (parts.training, parts.validation)]
    training = Training(run, setting.budget(run.way), *seen, folder / "states" / run.name)
    looks = training.go_on()
    figures |= {"validation": max(look["auc"] for look in looks), "looks": looks}
    if run.phase == "final":
        figures |= tests(run, setting, training, network)
    for part in seen:
        parts.release(part)
    training.saved.unlink()
    return figures | {"wall": round(training.progress.wall, 1)}
