"""What a run may take of the machine: flags, the budget of a streamed model, and what makes a run repeatable."""

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

UNIFIED = "as device, with memory shared between host and accelerator, see --oversubscription"
"""What `--mode unified` is, for every task."""
RATES = "rates.json"


def add_memory(add):
    """Flags of the budget of a streamed model."""
    add(
        "--device-memory",
        type=_bytes,
        metavar="BYTES",
        help="for strips on the accelerator, or beside the images without one, e.g. 512MB "
        "(default: 80 %% of the accelerator's free memory, or 256 MiB); only of what streams",
    )
    add(
        "--host-memory",
        type=_bytes,
        metavar="BYTES",
        help="for stored images and gradients, e.g. 32GB (default: what is free); only of what streams",
    )
    add(
        "--disk",
        type=_bytes_or_none,
        metavar="BYTES",
        help="for what host memory does not hold, 0 for no file (default: 90 %% of what is free in --scratch)",
    )
    add("--scratch", metavar="FOLDER", help="where that file is (default: for temporary files)")


def add_flags(add):
    """Flags of a training run."""
    add_memory(add)
    add(
        "--devices",
        nargs="+",
        metavar="NAME",
        help="that share the strips of an image, such as GPU:0 GPU:1 (default: the first accelerator, if any); only "
        "--mode offload",
    )
    add(
        "--oversubscription",
        type=_above_one,
        default=4.0,
        metavar="TIMES",
        help="memory for tensors over that of the accelerator, with its host's; only --mode unified "
        "(default: %(default)s)",
    )
    add(
        "--precision",
        choices=["float32", "mixed_bfloat16", "mixed_float16", "float64"],
        default="float32",
        help="mixed_bfloat16 halves what is stored, mixed_float16 too and scales the loss, float64 is for checks "
        "(default: %(default)s)",
    )
    add(
        "--deterministic",
        action="store_true",
        help="the same settings on the same machine give the same weights, bit by bit, resumed or not; slower on a GPU",
    )
    add(
        "--strategy",
        choices=["none", "mirrored", "multiworker"],
        default="none",
        help="mirrored: a replica of the model on each accelerator of this machine; multiworker: one on those of each "
        "machine, which TF_CONFIG or SLURM name, with --out on a file system of all; a step learns from replicas x "
        "--accumulate batches of --batch-size (default: %(default)s)",
    )
    add(
        "--sync-norm",
        action="store_true",
        help="statistics of BatchNormalization are those of the batches of all replicas, exactly",
    )


def is_plain(settings):
    """Whether the mode is plain Keras, with whole tensors."""
    return settings.mode in ("device", "unified")


def budget(settings):
    """Of the streamed model."""
    return tfbig.Budget(
        settings.device_memory, settings.host_memory, settings.disk, settings.scratch
    )


def prepare(settings):
    """What has to be set before anything uses a device.

    Raises:
        SourceError: there is no such device, or no cluster.
        UnifiedMemoryError: `--mode unified` cannot be had.
    """
    global _strategy
    _strategy = None  # a second run in one process
    if settings.mode == "unified":
        print(tfbig.unified_memory(settings.oversubscription))
    if settings.deterministic:
        tf.config.experimental.enable_op_determinism()
    if settings.strategy != "none" and settings.devices:
        raise SourceError(
            f"--devices goes with --strategy none; with {settings.strategy} each replica has a device of its own."
        )
    if settings.strategy == "multiworker" and not settings.out:
        raise SourceError("--strategy multiworker needs --out FOLDER, which all workers see.")
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
        _fix(settings)


_strategy = None
"""Of this process: there can be one."""


def scope():
    """Where models are made and compiled."""
    return nullcontext() if _strategy is None else _strategy.scope()


def replicas():
    """A line that says how many replicas train, if there is a strategy."""
    if _strategy is None:
        return []
    count, here = _strategy.num_replicas_in_sync, len(_strategy.extended.worker_devices)
    where = "on this machine" if count == here else f"{here} of them in this process"
    return [f"trains {count} replica{'s' * (count > 1)}, {where}"]


def is_chief():
    """Whether this process writes files and messages."""
    resolver = _strategy and _strategy.cluster_resolver
    if not resolver:
        return True
    chiefs = resolver.cluster_spec().as_dict().get("chief")
    return resolver.task_type == "chief" or (resolver.task_id == 0 and not chiefs)


@contextmanager
def telling():
    """Within it only the chief prints; errors are for all."""
    with ExitStack() as stack:
        if not is_chief():
            stack.enter_context(redirect_stdout(stack.enter_context(open(os.devnull, "w"))))
            progress.show(False)
        yield


def alone(made, make, folder):
    """Model and twin of a run that has ended, without the strategy that trained them, to be judged by the chief.

    Args:
        made: those that were trained.
        make: makes the same anew.
        folder: of the run, with what was trained.
    """
    global _strategy
    if _strategy is None:
        return made
    _strategy = None
    model, twin = make()
    twin.load_weights(folder / "model.keras")
    return model, twin


def of_all_replicas(settings, model):
    """Has the statistics of a model be those of all replicas, with `--sync-norm`."""
    for layer in model._flatten_layers(include_self=False):
        if isinstance(layer, keras.layers.BatchNormalization):
            layer.synchronized = settings.sync_norm
    return model


def _multi_worker():
    """The strategy of a cluster, which must be made before anything else.

    Raises:
        SourceError: nothing says which machines there are.
    """
    resolver = None
    if "TF_CONFIG" in os.environ:
        _check_cluster(os.environ["TF_CONFIG"])
    elif "SLURM_PROCID" in os.environ:
        # Which accelerators a task sees is SLURM's matter (--gpus-per-task): the resolver would ask nvidia-smi, and
        # wants to know of one for every task.
        resolver = tf.distribute.cluster_resolver.SlurmClusterResolver(
            gpus_per_node=2**10, gpus_per_task=1, auto_set_gpu=False
        )
    else:
        raise SourceError(
            "--strategy multiworker: neither TF_CONFIG nor SLURM say which workers there are. Start every worker with "
            f"TF_CONFIG='{_CLUSTER}', or by srun."
        )
    print("waits for all workers to start", file=sys.stderr, flush=True)
    with signals.at_once():
        return tf.distribute.MultiWorkerMirroredStrategy(resolver)


_CLUSTER = (
    '{"cluster": {"worker": ["host1:2222", "host2:2222"]}, "task": {"type": "worker", "index": 0}}'
)


def _check_cluster(text):
    """Refuses a `TF_CONFIG` in which TensorFlow would find no cluster, or not this worker."""
    try:
        known = json.loads(text)
        task = known["task"]
        known["cluster"][task["type"]][int(task["index"])]
    except (ValueError, LookupError, TypeError) as error:
        raise SourceError(
            f"TF_CONFIG is {text!r}, in which this worker is not found ({type(error).__name__}: {error}); expected "
            f"e.g. '{_CLUSTER}'."
        ) from error


def write_rates(folder):
    """Keeps the rates that the plans of a run were made with, so that a resumed one has the same plans."""
    run_folder.write_json(folder / RATES, machine_rates.known())


def _use_rates(path):
    try:
        machine_rates.use(run_folder.read_json(path))
    except TypeError as error:
        raise SourceError(f"{path}: holds no rates of a machine ({error}). Remove it.") from error


def _fix(settings):
    """Makes a budget that depends on what is free just now one that does not, to be saved with the settings."""
    known = budget(settings)
    if settings.host_memory is None:
        settings.host_memory = str(known.host_bytes)
    if settings.disk is None:
        settings.disk = str(known.disk_bytes)
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
