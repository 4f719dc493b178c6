"""Compare frozen features with training end to end, on four tasks whose truth is known.

    python -m recipes.experiments.end_to_end --out FOLDER --phase pilot [--hours 3]
    python -m recipes.experiments.end_to_end --out FOLDER --phase final [--hours 3]
    python -m recipes.experiments.end_to_end --out FOLDER --status
    python -m recipes.experiments.end_to_end --out FOLDER --report curves.png

Pilots try every learning rate, and for fixed features every head and encoder; the best on the validation images of two
seeds is trained again with five other seeds, and tested once. `images` has the tasks, `training` the ways, `plan` the
runs. Every finished run is a line of `pilot.jsonl` or `final.jsonl` in FOLDER. A run that is interrupted goes on from
its last evaluation when the command is given again. All budgets are processor seconds of one thread, so that other
load on the machine changes nothing but the time until the end. The report has the lines of final runs, or of the
pilots that were best if there are no final ones yet.
"""

from __future__ import annotations

import fcntl
import gc
import json
import os
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

from benchmarks import harness, report
from recipes.experiments.end_to_end import plan

SIDE, SLIDE_SIDE = 256, 4096
PHASES = ("pilot", "final")
DEFAULT = plan.Setting()


@dataclass(frozen=True)
class Arguments:
    out: Annotated[Path, "folder of lines, states and encoders"] = Path("end_to_end")
    phase: Annotated[str, PHASES, "runs that choose, or runs that are tested"] = "pilot"
    tasks: Annotated[Sequence[str], plan.TASKS] = plan.TASKS
    ways: Annotated[Sequence[str], plan.WAYS] = plan.WAYS
    hours: Annotated[float | None, "begin no run after so many hours"] = None
    status: Annotated[bool, "print what is done, what remains, and for how long"] = False
    report: Annotated[Path | None, "print the table, and draw the curves to this file"] = None
    train: Annotated[int, "images to train on"] = DEFAULT.train
    validation: Annotated[int, "images of the choices"] = DEFAULT.validation
    test: Annotated[int, "images of the test"] = DEFAULT.test
    seconds: Annotated[float, "budget of a run"] = DEFAULT.seconds
    head_seconds: Annotated[float, "budget of a head on fixed features"] = DEFAULT.head_seconds
    pretraining: Annotated[float, "budget of an encoder before it is fixed"] = DEFAULT.pretraining
    slides: Annotated[int, "slides to train on, and to test with"] = DEFAULT.slides
    slide_seconds: Annotated[float, "budget of a run on slides"] = DEFAULT.slide_seconds


def setting_of(arguments: Arguments) -> plan.Setting:
    """Return sizes and budgets."""
    return plan.Setting(**{name: getattr(arguments, name) for name in asdict(DEFAULT)})


def lines_of(arguments: Arguments, phase: str) -> list[plan.Line]:
    """Return the lines of a phase that have the same sizes and budgets."""
    setting = asdict(setting_of(arguments))
    return [x for x in plan.read(arguments.out / f"{phase}.jsonl") if x["setting"] == setting]


def planned(arguments: Arguments, phase: str) -> list[plan.Run]:
    """Return all runs of a phase, finished or not, so far as the pilots have decided them."""
    if phase == "pilot":
        return plan.pilots(arguments.tasks, arguments.ways)
    return plan.finals(lines_of(arguments, "pilot"), arguments.tasks, arguments.ways)


# -------------------------------------------------------------------------------------------- run


def use_one_thread() -> None:
    """Let TensorFlow have one thread, so that seconds of the processor are those of one core."""
    os.environ["OMP_NUM_THREADS"] = "1"
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Refuse to train in a folder in which another command trains: both would do the same runs."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SystemExit(
                f"{folder}: another command trains here. Wait until it ends."
            ) from None
        yield


def run_all(arguments: Arguments) -> None:
    """Train what remains of a phase, and add a line for each run."""
    use_one_thread()
    import keras

    end = time.monotonic() + 3600 * (arguments.hours or float("inf"))
    with alone(arguments.out / setting_of(arguments).name):
        done = lines_of(arguments, arguments.phase)
        for run in plan.remaining(planned(arguments, arguments.phase), done):
            if time.monotonic() > end:
                return
            finish(run, arguments)
            keras.backend.clear_session()
            gc.collect()


def finish(run: plan.Run, arguments: Arguments) -> None:
    """Train a run, and add its line to the file of its phase."""
    from recipes.experiments.end_to_end import training

    setting = setting_of(arguments)
    figures = training.finish(run, setting, arguments.out / setting.name)
    about = {**asdict(run), "setting": asdict(setting), **figures}
    side = SLIDE_SIDE if run.task == plan.SLIDES else SIDE
    line = report.line(f"end to end, {run.phase}", [side, side, 3], **about)
    plan.append(arguments.out / f"{run.phase}.jsonl", json.loads(line))
    print(run.name, figures["validation"], file=sys.stderr, flush=True)


# ----------------------------------------------------------------------------------------- status


def hours(runs: Sequence[plan.Run], setting: plan.Setting, lines: Sequence[plan.Line]) -> float:
    """Return the hours that runs take: as finished runs of the same task and way, or the budget if there are none."""
    taken = defaultdict(list)
    for line in lines:
        taken[line["task"], line["way"]].append(line["wall"])
    seconds = sum(
        statistics.mean(taken.get((run.task, run.way), [setting.budget(run.way)])) for run in runs
    )
    frozen = [run for run in runs if run.encoder]
    encoders = {(x.encoder, x.task if x.encoder == "views" else "", x.seed) for x in frozen}
    return (seconds + len(encoders) * setting.pretraining) / 3600


def status(arguments: Arguments) -> dict[str, Any]:
    """Return how many runs of each phase and task are finished, and the hours that remain.

    The final runs of a task appear when its pilots are finished; before, their hours are those of any choice.
    """
    setting, found = setting_of(arguments), {}
    lines = {phase: lines_of(arguments, phase) for phase in PHASES}
    for phase in PHASES:
        runs = planned(arguments, phase)
        left = plan.remaining(runs, lines[phase])
        if phase == "final":
            left += undecided(arguments, runs)
        done = {task: sum(x["task"] == task for x in lines[phase]) for task in arguments.tasks}
        measured = lines["pilot"] + lines["final"]
        found[phase] = {
            "done": done,
            "left": len(left),
            "hours_left": round(hours(left, setting, measured), 1),
        }
    return found


def undecided(arguments: Arguments, runs: Sequence[plan.Run]) -> list[plan.Run]:
    """Return final runs of tasks and ways that the pilots have not decided, with the first of all options."""
    decided = {(run.task, run.way) for run in runs}
    return [
        plan.Run(
            "final", task, way, seed=seed, augmented=augmented, **next(plan.options(task, way))
        )
        for task, way in plan.pairs(arguments.tasks, arguments.ways)
        for seed in plan.FINAL_SEEDS
        for augmented in ((False, True) if task in plan.AUGMENTED else (False,))
        if (task, way) not in decided
    ]


# ----------------------------------------------------------------------------------------- report


def print_report(arguments: Arguments) -> None:
    """Print the power of the plan and the table, and draw the curves."""
    from recipes.experiments.end_to_end import figures

    pilots, finals = (lines_of(arguments, phase) for phase in PHASES)
    for task, difference in figures.power(pilots).items():
        print(f"{task}: a difference of {difference:.3f} is found with a power of 80 %")
    shown = finals or best_pilots(arguments, pilots)
    if not shown:
        raise SystemExit("no run to report: the pilots of no task and way are finished.")
    print(figures.table(shown))
    for (task, way, stains), difference in figures.differences(shown).items():
        name = f"{task}, {way}{', random stains' if stains else ''}"
        print(f"{name}: better than frozen by {figures.with_interval(difference)}")
    figures.draw(shown, arguments.report)


def best_pilots(arguments: Arguments, pilots: Sequence[plan.Line]) -> list[plan.Line]:
    """Return the lines of the pilots that were chosen; where some are missing, of the best so far."""
    shown = []
    for task, way in plan.pairs(arguments.tasks, arguments.ways):
        mine = [x for x in pilots if (x["task"], x["way"]) == (task, way)]
        if mine:
            so_far = plan.run_of(max(mine, key=lambda x: x["validation"]))
            best = plan.chosen(pilots, task, way) or so_far
            shown += [x for x in mine if plan.is_same_choice(x, best)]
    return shown


def main() -> None:
    arguments = harness.read(Arguments)
    if arguments.status:
        print(json.dumps(status(arguments), indent=1))
    elif arguments.report:
        print_report(arguments)
    else:
        run_all(arguments)


if __name__ == "__main__":
    main()
