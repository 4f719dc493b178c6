"""What a run may take of the machine: flags, the budget of a streamed model, and what makes a run repeatable."""

import argparse
from pathlib import Path

import tensorflow as tf

import tfbig
from tfbig import SourceError, rates, runfolder
from tfbig.budget import parse_bytes

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
        SourceError: there is no such device, or no such folder.
        UnifiedMemoryError: `--mode unified` cannot be had.
    """
    if settings.mode == "unified":
        print(tfbig.unified_memory(settings.oversubscription))
    try:
        tfbig.backend.devices_of(settings.devices)
    except ValueError as error:
        raise SourceError(f"--devices: {error}") from error
    if settings.resume:
        rates.use(runfolder.read_json(Path(settings.out) / RATES))
    if settings.deterministic:
        tf.config.experimental.enable_op_determinism()
        _fix(settings)


def write_rates(folder):
    """Keeps the rates that the plans of a run were made with, so that a resumed one has the same plans."""
    runfolder.write_json(folder / RATES, rates.known())


def _fix(settings):
    """Makes a budget that depends on what is free just now one that does not, to be saved with the settings."""
    known = budget(settings)
    if settings.host_memory is None:
        settings.host_memory = str(known.host_bytes)
    if settings.disk is None:
        settings.disk = str(known.disk_bytes)
    if settings.device_memory is None and tfbig.backend.accelerator():
        settings.device_memory = str(int(0.8 * tfbig.backend.accelerator_bytes()))


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
