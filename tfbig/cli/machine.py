"""Resources of a run: the budget of a streamed model, replicas, and reproducibility."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import (
    AbstractContextManager,
    ExitStack,
    contextmanager,
    nullcontext,
    redirect_stdout,
)
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import keras
import tensorflow as tf

import tfbig
from tfbig import SourceError
from tfbig.cli.paths import FlagError
from tfbig.cli.settings.run_settings import MachineSettings, MemorySettings
from tfbig.cli.settings.series import members
from tfbig.cli.settings.tasks import TrainSettings
from tfbig.engine import machine_rates
from tfbig.plan.plan import Plan
from tfbig.results import run_folder
from tfbig.system import backend, keras_internals, progress, signals, tensorflow_internals
from tfbig.system import budget as budgets
from tfbig.units import format_bytes

M = TypeVar("M", bound=MemorySettings)
R = TypeVar("R")
T = TypeVar("T", bound=TrainSettings)

RATES = "rates.json"


def is_plain(settings: TrainSettings) -> bool:
    """Tell whether the mode is plain Keras, with whole tensors."""
    return settings.mode in ("device", "unified")


def budget(settings: MemorySettings) -> tfbig.Budget:
    """The budget of the streamed model."""
    return tfbig.Budget(
        settings.device_memory, settings.host_memory, settings.disk, settings.scratch
    )


def prepare(settings: T) -> T:
    """Set what must be set before a device is used; return the settings with the budget of this machine.

    Args:
        settings: Settings of the run.

    Raises:
        FlagError: A device does not exist.
        SourceError: The cluster does not exist.
        UnifiedMemoryError: `--mode unified` is not available.
    """
    _set_strategy(None)  # this process may have made a run before
    if settings.mode == "unified":
        print(tfbig.unified_memory(settings.oversubscription))
    if settings.deterministic:
        tf.config.experimental.enable_op_determinism()
    begin(settings)
    try:
        backend.devices_of(settings.devices, "--devices ")
    except ValueError as error:
        raise FlagError(str(error)) from error
    return fixed_budget(settings) if settings.deterministic else settings


def begin(settings: TrainSettings) -> None:
    """Set what each run of a process needs: its strategy, and the machine rates of the run that it continues.

    Args:
        settings: Settings of the run.

    Raises:
        FlagError: Another flag contradicts `--strategy`.
        SourceError: The cluster does not exist.
    """
    _set_strategy(_strategy_of(settings))
    if settings.resume:
        _use_rates(Path(settings.out or "") / RATES)


_strategy: Any = None
"""Strategy of this process, if any; TensorFlow allows only one."""


def _set_strategy(strategy: Any) -> None:
    global _strategy
    _strategy = strategy


def _strategy_of(settings: TrainSettings) -> Any:
    """Return the strategy that `--strategy` names.

    Raises:
        FlagError: Another flag contradicts it.
        SourceError: The cluster does not exist.
    """
    if settings.strategy != "none" and settings.devices:
        raise FlagError(
            f"--devices needs --strategy none; with --strategy {settings.strategy} each replica has its own device. "
            "Leave it out."
        )
    if settings.strategy == "multiworker" and members(vars(settings)):
        raise FlagError(
            "--seeds and --folds need one process, but --strategy multiworker has several. Start a run for each --seed "
            "and --fold."
        )
    if settings.strategy == "multiworker" and not settings.out:
        raise FlagError(
            "--strategy multiworker needs --out FOLDER, on a file system that all workers share."
        )
    if settings.strategy == "mirrored":
        return tf.distribute.MirroredStrategy()
    return _multi_worker() if settings.strategy == "multiworker" else None


def scope() -> AbstractContextManager[Any]:
    """The context in which models are built and compiled."""
    return nullcontext() if _strategy is None else _strategy.scope()


def replica_notice() -> list[str]:
    """A line with the number of replicas, if there is a strategy."""
    if _strategy is None:
        return []
    count, here = _strategy.num_replicas_in_sync, len(_strategy.extended.worker_devices)
    where = "on this machine" if count == here else f"{here} of them in this process"
    return [f"training {count} replica{'s' * (count > 1)}, {where}"]


def is_chief() -> bool:
    """Tell whether this process writes files and messages."""
    resolver = _strategy and _strategy.cluster_resolver
    if not resolver:
        return True
    chiefs = resolver.cluster_spec().as_dict().get("chief")
    return bool(resolver.task_type == "chief" or (resolver.task_id == 0 and not chiefs))


@contextmanager
def chief_prints() -> Iterator[None]:
    """Let only the chief print in this context; errors are raised in all workers."""
    with ExitStack() as stack:
        if not is_chief():
            stack.enter_context(redirect_stdout(stack.enter_context(open(os.devnull, "w"))))
            progress.show(False)
        yield


def without_strategy(trained: R, build: Callable[[], R]) -> R:
    """Build models again without the strategy that trained them, so that the chief can evaluate them.

    `build` gives them the trained weights. Without a strategy, `trained` are returned as they are.
    """
    if _strategy is None:
        return trained
    _set_strategy(None)
    return build()


def synchronize_norm(settings: MachineSettings, model: Any) -> Any:
    """Set `BatchNormalization.synchronized` for every layer, as `--sync-norm` asks."""
    for layer in keras_internals.inner_layers(model):
        if isinstance(layer, keras.layers.BatchNormalization):
            layer.synchronized = settings.sync_norm
    return model


def _multi_worker() -> Any:
    """Create the strategy of a cluster; this must happen before anything else uses TensorFlow.

    Raises:
        SourceError: Neither `TF_CONFIG` nor SLURM names the workers.
    """
    resolver = None
    if "TF_CONFIG" in os.environ:
        _check_cluster(os.environ["TF_CONFIG"])
    elif "SLURM_PROCID" in os.environ:
        # SLURM decides which accelerators a task sees (--gpus-per-task); the resolver would ask nvidia-smi, and
        # expects one for every task.
        resolver = tf.distribute.cluster_resolver.SlurmClusterResolver(
            gpus_per_node=2**10, gpus_per_task=1, auto_set_gpu=False
        )
    else:
        raise SourceError(
            "--strategy multiworker: neither TF_CONFIG nor SLURM names the workers. Start every worker with "
            f"TF_CONFIG='{_CLUSTER}', or by srun."
        )
    print("waiting for all workers to start", file=sys.stderr, flush=True)
    with signals.default_handlers():
        return tf.distribute.MultiWorkerMirroredStrategy(resolver)


_CLUSTER = (
    '{"cluster": {"worker": ["host1:2222", "host2:2222"]}, "task": {"type": "worker", "index": 0}}'
)


def _check_cluster(text: str) -> None:
    """Check that `TF_CONFIG` describes a cluster with this worker in it."""
    try:
        config = json.loads(text)
        task = config["task"]
        config["cluster"][task["type"]][int(task["index"])]
    except (ValueError, LookupError, TypeError) as error:
        raise SourceError(
            f"TF_CONFIG is {text!r}, which does not contain this worker ({type(error).__name__}: {error}); expected "
            f"e.g. '{_CLUSTER}'."
        ) from error


def write_rates(folder: Path) -> None:
    """Save the machine rates of the run, so that a resumed run makes the same plans."""
    run_folder.write_json(folder / RATES, machine_rates.known())


def _use_rates(path: Path) -> None:
    try:
        machine_rates.use(run_folder.read_json(path))
    except TypeError as error:
        raise SourceError(
            f"{path}: does not hold the rates of a machine ({error}). Remove it."
        ) from error


def fixed_budget(settings: M) -> M:
    """Put numbers in place of budgets that depend on free memory."""
    limits = budget(settings)
    device = settings.device_memory
    if device is None and backend.accelerator():
        device = str(int(0.8 * tensorflow_internals.accelerator_bytes()))
    return replace(
        settings,
        host_memory=settings.host_memory or str(limits.host_bytes),
        disk=settings.disk or str(limits.disk_bytes),
        device_memory=device,
    )


def in_words(settings: TrainSettings, plan: Plan) -> str:
    """Describe the plan of a training step: its sweeps, or that plain Keras has none."""
    if not is_plain(settings):
        return str(plan)
    shape = " x ".join(map(str, plan.shape))
    return (
        f"Plan for an image of {shape}: plain Keras, without strips. A training step holds whole tensors and takes "
        f"{format_bytes(plan.peak_bytes)}."
    )


def warn_of_memory(settings: TrainSettings, plan: Plan, validation: Plan) -> None:
    """Print a warning if steps of plain Keras on the processor need more memory than there is."""
    if settings.mode != "device" or tf.config.list_logical_devices("GPU"):
        return
    needed, available = max(p.peak_bytes for p in (plan, validation)), budgets.available_bytes()
    if needed > available:
        step = "validation step" if validation.peak_bytes == needed else "training step"
        print(
            f"warning: a {step} of plain Keras on the largest image is planned to take {needed / 2**30:.1f} GiB of "
            f"memory, and {available / 2**30:.1f} GiB are available: the system may end the process. Use --mode "
            "offload.",
            file=sys.stderr,
        )


def planned_bytes(plan: Plan, validation: Plan) -> dict[str, int]:
    """Plan the peak memory of the process: what it uses now, and a training or a validation step.

    Memory of one kind of step that does not depend on the image size, mostly traces, stays while the other runs.
    """
    held, _ = run_folder.memory_bytes()
    both = plan, validation
    most = max(p.peak_bytes for p in both) + min(p.projected.fixed for p in both)
    return {"base_bytes": held, "planned_bytes": held + most}
