"""Settings of every training run: its folder, its resources, its seed."""

from __future__ import annotations

from dataclasses import dataclass

from tfbig.cli.settings import value_types as types
from tfbig.cli.settings.flag import DECIDES_RESULT, ENVIRONMENT, THIS_START, TUNABLE, flag
from tfbig.tasks import DEFAULT, TASKS

UNIFIED = "as device, with memory shared by host and accelerator"
"""What `--mode unified` is."""
MASK_MODES = {
    "offload": "strip by strip, images stored in host memory or on disk",
    "device": "plain Keras on whole crops or images, same data and seed",
    "unified": UNIFIED,
}
"""Modes of the tasks with an output for every pixel."""
EXACT_MODES = ("device", "unified", "offload")
"""Modes with the same results; a run may change from one to another."""


@dataclass(frozen=True, kw_only=True)
class TaskSettings:
    """Task and mode of a training run; each task has its own modes, the first of which is the default."""

    SECTION = "data"

    task: str = flag(
        DEFAULT,
        choices={name: task.title for name, task in TASKS.items()},
        help="what to train; --task NAME --help lists the flags of a task",
    )
    mode: str = flag("offload", choices=EXACT_MODES, same_results=EXACT_MODES)


@dataclass(frozen=True, kw_only=True)
class MemorySettings:
    """Budget of a streamed model."""

    SECTION = "machine"

    device_memory: str | None = flag(
        kind=ENVIRONMENT,
        type=types.byte_size,
        metavar="BYTES",
        help="accelerator memory for strips, e.g. 512MB; on a CPU, memory for strips in addition to stored images "
        "(default: 80 % of the accelerator's free memory, on a CPU 256 MiB); streamed models only",
    )
    host_memory: str | None = flag(
        kind=ENVIRONMENT,
        type=types.byte_size,
        metavar="BYTES",
        help="host memory for stored images and gradients, e.g. 32GB (default: 90 % of the free memory); streamed "
        "models only",
    )
    disk: str | None = flag(
        kind=ENVIRONMENT,
        type=types.byte_size_or_zero,
        metavar="BYTES",
        help="disk space for what does not fit in host memory, e.g. 100GB; 0 disables the file (default: 90 % of "
        "the free space in --scratch)",
    )
    scratch: str | None = flag(
        kind=ENVIRONMENT,
        metavar="FOLDER",
        help="folder of that file (default: the folder for temporary files)",
    )


@dataclass(frozen=True, kw_only=True)
class MachineSettings(MemorySettings):
    """Resources of a training run."""

    SECTION = "machine"

    devices: tuple[str, ...] | None = flag(
        kind=ENVIRONMENT,
        nargs="+",
        metavar="NAME",
        help="devices that share the strips of an image, such as GPU:0 GPU:1 (default: the first accelerator, if any); "
        "--mode offload only",
    )
    oversubscription: float = flag(
        4.0,
        kind=ENVIRONMENT,
        type=types.above_one,
        metavar="TIMES",
        help="memory for tensors, accelerator and host together, as a multiple of accelerator memory",
        only_if={"mode": ("unified",)},
    )
    precision: str = flag(
        "float32",
        kind=DECIDES_RESULT,
        choices={
            "float32": "",
            "mixed_bfloat16": "halves stored images",
            "mixed_float16": "too, and scales the loss",
            "float64": "for checks",
        },
        help="dtype policy",
    )
    deterministic: bool = flag(
        False,
        kind=TUNABLE,
        help="make equal runs on a machine equal bit by bit, also when resumed; slower on a GPU",
    )
    strategy: str = flag(
        "none",
        kind=TUNABLE,
        choices={
            "none": "one model",
            "mirrored": "a replica on each accelerator of this machine",
            "multiworker": "replicas on several machines, named by TF_CONFIG or SLURM, with --out on a shared file "
            "system",
        },
        help="an optimizer step uses replicas x --accumulate batches of --batch-size",
    )
    sync_norm: bool = flag(
        False,
        kind=TUNABLE,
        help="compute BatchNormalization statistics over the batches of all replicas, exactly",
        only_if={"strategy": ("mirrored", "multiworker")},
    )


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """The seeds and the folder of a training run, and how it is made."""

    SECTION = "run"

    seed: int = flag(0, section="optimisation", type=int, help="random seed of weights and data")
    seeds: int | None = flag(
        section="optimisation",
        type=types.two_or_more,
        metavar="N",
        help="train N times, in the folders seed-0, seed-1, ... of --out, and write the mean and the standard "
        "deviation of each metric (default: train once)",
    )
    test_only: str | None = flag(
        section="evaluation",
        kind=ENVIRONMENT,
        path=True,
        exists="folder",
        metavar="RUN",
        help="train nothing; evaluate the model of this run folder on the test data, as tfbig evaluate RUN does",
    )
    out: str | None = flag(
        kind=ENVIRONMENT,
        metavar="FOLDER",
        help="run folder for the model, history, metrics, plan and figures "
        "(default: runs/<task>-<mode>-<date>-<time>)",
    )
    resume: bool = flag(
        False,
        kind=THIS_START,
        help="continue the run in --out from its last checkpoint, as if it had not been interrupted (--epochs trains "
        "longer), or start it",
    )
    checkpoint_minutes: float = flag(
        10.0,
        kind=ENVIRONMENT,
        type=types.positive,
        metavar="MINUTES",
        help="minutes between checkpoints; one is also written after every epoch, Ctrl-C, SIGTERM and error",
        trains=True,
    )
    config: str | None = flag(
        kind=THIS_START,
        metavar="FILE",
        help="YAML file of flags (device_memory: 512MB), such as config.yaml of a run, or a recipe of tfbig, such as "
        "recipes/abmil-original.yaml; flags win",
    )
    beside: str | None = flag(
        exists="folder",
        kind=THIS_START,
        metavar="RUN",
        help="run of another mode on the same data, whose loss, time and memory are added to the results",
    )
    dry_run: bool = flag(False, kind=THIS_START, help="print the plan and stop; nothing is written")
    quiet: bool = flag(False, kind=THIS_START, help="no progress bars")
    strict: bool = flag(
        False,
        kind=ENVIRONMENT,
        help="stop if a file cannot be read, instead of listing it in failed.csv (exit code 3)",
    )
    tensorboard: bool = flag(
        False,
        kind=ENVIRONMENT,
        help="write the history for TensorBoard (pip install 'tfbig[log]')",
        trains=True,
    )
