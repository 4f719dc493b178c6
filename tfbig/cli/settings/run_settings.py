"""Settings of every training run: its folder, its resources, its seed."""

from __future__ import annotations

from dataclasses import dataclass

from tfbig.cli.settings import value_types as types
from tfbig.cli.settings.flag import PLACE, RESULT, SESSION, TUNABLE, Kind, flag

TASK_TITLES = {
    "segmentation": "masks of slides",
    "mil": "a label for the tiles of each slide",
    "images": "a label for each image, from the whole image or by patches (--mode patchgd)",
    "patchgd-segmentation": "masks of images, by patches",
    "volume-segmentation": "masks of volumes",
    "scenes": "masks of satellite scenes",
    "instances": "objects in images, such as nuclei",
}
"""What is trained, by the name of the task; the first is the default."""
UNIFIED = "as device, with memory shared by host and accelerator (see --oversubscription)"
"""Help text of `--mode unified`."""
EXACT_MODES = ("device", "unified", "offload")
"""Modes with the same results; a run may change from one to another."""


def task_flag(name: str) -> str:
    """Return the field of the flag `--task`."""
    field: str = flag(
        name,
        choices=TASK_TITLES,
        help="what to train; --task NAME --help lists the flags of a task",
    )
    return field


def mode_flag(modes: dict[str, str]) -> str:
    """Return the field of the flag `--mode`; the first mode is the default.

    Args:
        modes: What each mode is, by name.
    """
    field: str = flag(next(iter(modes)), choices=modes, interchangeable=EXACT_MODES)
    return field


def evaluated_run_flag(where: str) -> str | None:
    """Return the field of the flag `--test-only`.

    Args:
        where: Data on which the model is evaluated.
    """
    help_text = f"train nothing; evaluate the model of this run folder on {where}"
    field: str | None = flag(kind=PLACE, path=True, exists="folder", metavar="RUN", help=help_text)
    return field


def slide_mpp_flag(kind: Kind) -> float | None:
    """Return the field of the flag `--slide-mpp`.

    Args:
        kind: What the flag is.
    """
    field: float | None = flag(
        kind=kind,
        type=types.positive,
        metavar="MPP",
        help="micrometres per pixel at level 0 of slides whose files do not say it; --mpp-of wins for the "
        "slides that it names",
    )
    return field


@dataclass(frozen=True, kw_only=True)
class MemorySettings:
    """Budget of a streamed model."""

    device_memory: str | None = flag(
        kind=PLACE,
        type=types.byte_size,
        metavar="BYTES",
        help="accelerator memory for strips, e.g. 512MB; on a CPU, memory for strips in addition to stored images "
        "(default: 80 % of the accelerator's free memory, on a CPU 256 MiB); streamed models only",
    )
    host_memory: str | None = flag(
        kind=PLACE,
        type=types.byte_size,
        metavar="BYTES",
        help="host memory for stored images and gradients, e.g. 32GB (default: 90 % of the free memory); streamed "
        "models only",
    )
    disk: str | None = flag(
        kind=PLACE,
        type=types.byte_size_or_zero,
        metavar="BYTES",
        help="disk space for what does not fit in host memory, e.g. 100GB; 0 disables the file (default: 90 % of "
        "the free space in --scratch)",
    )
    scratch: str | None = flag(
        kind=PLACE,
        metavar="FOLDER",
        help="folder of that file (default: the folder for temporary files)",
    )


@dataclass(frozen=True, kw_only=True)
class SeedSettings:
    """Random seeds."""

    SECTION = "training"

    seed: int = flag(0, type=int, help="random seed of weights and data")
    seeds: int | None = flag(
        type=types.two_or_more,
        metavar="N",
        help="train N times, with the seeds from --seed on, in the folders seed-0, seed-1, ... of --out, and write the "
        "mean and the standard deviation of each metric (default: train once)",
    )


@dataclass(frozen=True, kw_only=True)
class MachineSettings(MemorySettings):
    """Resources of a training run."""

    SECTION = "machine"

    devices: tuple[str, ...] | None = flag(
        kind=PLACE,
        nargs="+",
        metavar="NAME",
        help="devices that share the strips of an image, such as GPU:0 GPU:1 (default: the first accelerator, if any); "
        "--mode offload only",
    )
    oversubscription: float = flag(
        4.0,
        kind=PLACE,
        type=types.above_one,
        metavar="TIMES",
        help="memory for tensors, accelerator and host together, as a multiple of accelerator memory; --mode "
        "unified only",
    )
    precision: str = flag(
        "float32",
        kind=RESULT,
        choices=["float32", "mixed_bfloat16", "mixed_float16", "float64"],
        help="dtype policy: mixed_bfloat16 halves stored images; mixed_float16 too, and scales the loss; "
        "float64 is for checks",
    )
    deterministic: bool = flag(
        False,
        kind=TUNABLE,
        help="make runs with the same settings on the same machine equal bit by bit, also when resumed; slower on a "
        "GPU",
    )
    strategy: str = flag(
        "none",
        kind=TUNABLE,
        choices=["none", "mirrored", "multiworker"],
        help="mirrored: one replica of the model on each accelerator of this machine; multiworker: replicas on several "
        "machines, named by TF_CONFIG or SLURM, with --out on a shared file system; an optimizer step uses replicas x "
        "--accumulate batches of --batch-size",
    )
    sync_norm: bool = flag(
        False,
        kind=TUNABLE,
        help="compute BatchNormalization statistics over the batches of all replicas, exactly",
    )


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """The folder of a training run, and how it is made."""

    SECTION = "run"

    out: str | None = flag(
        kind=PLACE,
        metavar="FOLDER",
        help="run folder for the model, history, metrics, plan and figures "
        "(default: runs/<task>-<mode>-<date>-<time>)",
    )
    resume: bool = flag(
        False,
        kind=SESSION,
        help="continue the run in --out from its last checkpoint, with its settings, as if it had not been interrupted "
        "(--epochs trains longer); if the folder holds no run, start one",
    )
    checkpoint_minutes: float = flag(
        10.0,
        kind=PLACE,
        type=types.positive,
        metavar="MINUTES",
        help="minutes between checkpoints within an epoch; one is also written after every epoch, Ctrl-C, SIGTERM "
        "and error",
    )
    config: str | None = flag(
        kind=SESSION,
        metavar="FILE",
        help="YAML file of flags (device_memory: 512MB), such as config.yaml of a run, or a recipe that is installed "
        "with tfbig, such as recipes/abmil-original.yaml; flags on the command line win",
    )
    beside: str | None = flag(
        exists="folder",
        kind=SESSION,
        metavar="RUN",
        help="run folder of another mode on the same data, to compare with: its loss, time and memory are added to "
        "metrics.json and the report",
    )
    dry_run: bool = flag(False, kind=SESSION, help="print the plan and stop; nothing is written")
    quiet: bool = flag(False, kind=SESSION, help="no progress bars")
    strict: bool = flag(
        False,
        kind=PLACE,
        help="stop if a file cannot be read; without it, the file is skipped, listed in failed.csv, and the exit "
        "code is 3",
    )
    tensorboard: bool = flag(
        False,
        kind=PLACE,
        help="write the history for TensorBoard into the run folder (pip install 'tfbig[log]')",
    )
