"""Resources of a run: flags, the budget of a streamed model, replicas, and reproducibility."""

import argparse
import json
import os
import sys
from contextlib import ExitStack, contextmanager, nullcontext, redirect_stdout
from pathlib import Path

import keras
import tensorflow as tf

import tfbig
from tfbig import SourceError
from tfbig.engine import machine_rates
from tfbig.results import run_folder
from tfbig.system import backend, progress, signals
from tfbig.system.budget import parse_bytes

UNIFIED = "as device, with memory shared by host and accelerator (see --oversubscription)"
"""Help text of `--mode unified`."""
RATES = "rates.json"


def add_memory(add):
    """Add the flags of the budget of a streamed model."""
    add(
        "--device-memory",
        type=_bytes,
        metavar="BYTES",
        help="accelerator memory for strips, e.g. 512MB; on a CPU, memory for strips in addition to stored images "
        "(default: 80 %% of the accelerator's free memory, on a CPU 256 MiB); streamed models only",
    )
    add(
        "--host-memory",
        type=_bytes,
        metavar="BYTES",
        help="host memory for stored images and gradients, e.g. 32GB (default: the free memory); streamed models only",
    )
    add(
        "--disk",
        type=_bytes_or_none,
        metavar="BYTES",
        help="disk space for what does not fit in host memory, e.g. 100GB; 0 disables the file (default: 90 %% of "
        "the free space in --scratch)",
    )
    add(
        "--scratch",
        metavar="FOLDER",
        help="folder of that file (default: the folder for temporary files)",
    )


def add_flags(add):
    """Add the machine flags of a training run."""
    add_memory(add)
    add(
        "--devices",
        nargs="+",
        metavar="NAME",
        help="devices that share the strips of an image, such as GPU:0 GPU:1 (default: the first accelerator, if any); "
        "--mode offload only",
    )
    add(
        "--oversubscription",
        type=_above_one,
        default=4.0,
        metavar="TIMES",
        help="memory for tensors, accelerator and host together, as a multiple of accelerator memory; --mode "
        "unified only (default: %(default)s)",
    )
    add(
        "--precision",
        choices=["float32", "mixed_bfloat16", "mixed_float16", "float64"],
        default="float32",
        help="dtype policy: mixed_bfloat16 halves stored images; mixed_float16 too, and scales the loss; "
        "float64 is for checks (default: %(default)s)",
    )
    add(
        "--deterministic",
        action="store_true",
        help="make runs with the same settings on the same machine equal bit by bit, also when resumed; slower on a "
        "GPU",
    )
    add(
        "--strategy",
        choices=["none", "mirrored", "multiworker"],
        default="none",
        help="mirrored: one replica of the model on each accelerator of this machine; multiworker: replicas on several "
        "machines, named by TF_CONFIG or SLURM, with --out on a shared file system; an optimizer step uses replicas x "
        "--accumulate batches of --batch-size (default: %(default)s)",
    )
    add(
        "--sync-norm",
        action="store_true",
        help="compute BatchNormalization statistics over the batches of all replicas, exactly",
    )


def is_plain(settings):
    """Return whether the mode is plain Keras, with whole tensors."""
    return settings.mode in ("device", "unified")


def budget(settings):
    """Return the budget of the streamed model."""
    return tfbig.Budget(
        settings.device_memory, settings.host_memory, settings.disk, settings.scratch
    )


def prepare(settings):
    """Set what must be set before a device is used.

    Args:
        settings: Settings of the run.

    Raises:
        SourceError: A device or the cluster does not exist.
        UnifiedMemoryError: `--mode unified` is not available.
    """
    global _strategy
    _strategy = None  # this process may have made a run before
    if settings.mode == "unified":
        print(tfbig.unified_memory(settings.oversubscription))
    if settings.deterministic:
        tf.config.experimental.enable_op_determinism()
    if settings.strategy != "none" and settings.devices:
        raise SourceError(
            f"--devices needs --strategy none; with --strategy {settings.strategy} each replica has its own device. "
            "Leave it out."
        )
    if settings.strategy == "multiworker" and not settings.out:
        raise SourceError(
            "--strategy multiworker needs --out FOLDER, on a file system that all workers share."
        )
    if settings.strategy == "mirrored":
        _strategy = tf.distribute.MirroredStrategy()
    elif settings.strategy == "multiworker":
        _strategy = _multi_worker()
    try:
        backend.devices_of(settings.devices)
    except ValueError as error:
        raise SourceError(f"--devices: {error}") from error
    if settings.resume:
        _use_rates(Path(settings.out) / RATES)
    if settings.deterministic:
        _fix_budget(settings)


_strategy = None
"""Strategy of this process, if any; TensorFlow allows only one."""


def scope():
    """Return the context in which models are built and compiled."""
    return nullcontext() if _strategy is None else _strategy.scope()


def replica_notice():
    """Return a line with the number of replicas, if there is a strategy."""
    if _strategy is None:
        return []
    count, here = _strategy.num_replicas_in_sync, len(_strategy.extended.worker_devices)
    where = "on this machine" if count == here else f"{here} of them in this process"
    return [f"training {count} replica{'s' * (count > 1)}, {where}"]


def is_chief():
    """Return whether this process writes files and messages."""
    resolver = _strategy and _strategy.cluster_resolver
    if not resolver:
        return True
    chiefs = resolver.cluster_spec().as_dict().get("chief")
    return resolver.task_type == "chief" or (resolver.task_id == 0 and not chiefs)


@contextmanager
def chief_prints():
    """Let only the chief print in this context; errors are raised in all workers."""
    with ExitStack() as stack:
        if not is_chief():
            stack.enter_context(redirect_stdout(stack.enter_context(open(os.devnull, "w"))))
            progress.show(False)
        yield


def without_strategy(trained, build, folder):
    """Return model and twin without the strategy that trained them, so that the chief can evaluate them.

    Args:
        trained: Model and twin that were trained.
        build: Function that builds both again.
        folder: Run folder with the trained weights.
    """
    global _strategy
    if _strategy is None:
        return trained
    _strategy = None
    model, twin = build()
    twin.load_weights(folder / "model.keras")
    return model, twin


def synchronize_norm(settings, model):
    """Set `BatchNormalization.synchronized` for every layer, as `--sync-norm` asks."""
    for layer in model._flatten_layers(include_self=False):
        if isinstance(layer, keras.layers.BatchNormalization):
            layer.synchronized = settings.sync_norm
    return model


def _multi_worker():
    """Return the strategy of a cluster; it must be created before anything else uses TensorFlow.

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


def _check_cluster(text):
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


def write_rates(folder):
    """Save the machine rates of the run, so that a resumed run makes the same plans."""
    run_folder.write_json(folder / RATES, machine_rates.known())


def _use_rates(path):
    try:
        machine_rates.use(run_folder.read_json(path))
    except TypeError as error:
        raise SourceError(
            f"{path}: does not hold the rates of a machine ({error}). Remove it."
        ) from error


def _fix_budget(settings):
    """Replace budgets that depend on free memory by numbers, which are saved with the settings."""
    limits = budget(settings)
    if settings.host_memory is None:
        settings.host_memory = str(limits.host_bytes)
    if settings.disk is None:
        settings.disk = str(limits.disk_bytes)
    if settings.device_memory is None and backend.accelerator():
        settings.device_memory = str(int(0.8 * backend.accelerator_bytes()))


def _above_one(text):
    number = float(text)
    if not 1 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"'{text}' must be above 1")
    return number


def _bytes(text):
    try:
        parse_bytes(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def _bytes_or_none(text):
    return text if text == "0" else _bytes(text)


def planned_bytes(plan, validation):
    """Return the planned peak memory of the process: what it uses now, and a training or a validation step.

    Memory of one kind of step that does not depend on the image size, mostly traces, stays while the other runs.
    """
    held, _ = run_folder.memory_bytes()
    both = plan, validation
    most = max(p.peak_bytes for p in both) + min(p.projected.fixed for p in both)
    return {"base_bytes": held, "planned_bytes": held + most}
