"""Load `.keras` files of unknown origin without running code from them."""

from __future__ import annotations

import importlib
import json
import math
import os
import sys
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import keras
import tensorflow as tf

from tfbig import SourceError
from tfbig.cli import messages
from tfbig.errors import reason_of
from tfbig.results import run_folder
from tfbig.sources import trial
from tfbig.sources.untrusted import check_size
from tfbig.streaming.twin_model import TwinModel
from tfbig.units import counted, format_bytes

MAX_CONFIG_BYTES: Final = 2**22
"""Largest accepted configuration of a model; one of a thousand layers has 2**20."""
UNCHECKED_WEIGHTS: Final = 2**24
"""Weights that a model may have beside those in its file."""


def load(path: str | Path, custom: Sequence[str] = (), compiled: bool = False) -> Any:
    """Load the model of a `.keras` file; of a streamed model, the plain one.

    Modules in `custom` are imported first. With `compiled`, loss and optimizer are restored too.

    The file is loaded in the safe mode of Keras: only layers, losses and functions of Keras, of tfbig and its models,
    and those that `custom` registers. A file with a Lambda or a class of another module is refused, and files that it
    points to are not read.

    Raises:
        SourceError: The file or a module is missing, or the file is damaged or refused.
    """
    path = Path(path)
    check_file(path)
    for name in custom:
        _import(name)
    _check_parts(path)
    try:
        with _limited_weights(path):
            model = keras.saving.load_model(path, compile=compiled, safe_mode=True)
    except Exception as error:  # errors of zip, HDF5, JSON and Keras
        if damage := _damage(path):
            raise SourceError(
                f"{path}: is damaged: {damage}. Copy or save the file again."
            ) from error
        raise SourceError(
            f"{path}: cannot be loaded as a Keras model ({type(error).__name__}: {_reason(error)}). Save it with "
            "model.save('name.keras'); for custom layers, name the module that registers them: --custom MODULE."
        ) from error
    return model.twin if isinstance(model, TwinModel) else model


def check_file(path: Path) -> None:
    """Check that a path is a whole file in the format of Keras; its content is checked when it is loaded.

    Raises:
        SourceError: It does not exist, is a folder or of another format, or is damaged.
    """
    if not path.exists():
        raise SourceError(_missing(path))
    if path.is_dir():
        raise SourceError(f"{path}: is a folder; expected a .keras file, or a run folder.")
    if path.suffix == ".keras" and not zipfile.is_zipfile(path):
        with path.open("rb") as file:
            begins = file.read(4)
        state = "is truncated" if begins == b"PK\x03\x04" else "is not a Keras file"
        raise SourceError(
            f"{path}: {state if begins else 'is empty'}; expected a file that model.save('name.keras') wrote. Copy or "
            "save it again."
        )


def _check_parts(path: Path) -> None:
    """Check the sizes of the parts of a file before Keras reads them, and that HDF5 can read its weights.

    Raises:
        SourceError: A part takes far more memory than it may, or the weights cannot be read.
    """
    if path.suffix in (".h5", ".hdf5"):
        trial.check("hdf5", path)
    if path.suffix != ".keras":
        return
    with suppress(zipfile.BadZipFile), zipfile.ZipFile(path) as archive:
        sizes = {part.filename: part.file_size for part in archive.infolist()}
        check_size(path, sum(sizes.values()), "its parts")
        if sizes.get("config.json", 0) > MAX_CONFIG_BYTES:
            raise SourceError(
                f"{path}: its config.json has {format_bytes(sizes['config.json'])}; expected at most "
                f"{format_bytes(MAX_CONFIG_BYTES)}. Save the model without constants, such as vocabularies."
            )
    try:
        trial.check("keras", path)
    except SourceError as error:
        if damage := _damage(path):
            raise SourceError(
                f"{path}: is damaged: {damage}. Copy or save the file again."
            ) from error
        raise


@contextmanager
def _limited_weights(path: Path) -> Iterator[None]:
    """Refuse layers with more weights than the file can hold: a few bytes of configuration may ask for any number.

    They are counted as variables of this thread; models that other threads build meanwhile are not.

    Raises:
        ValueError: They create more.
    """
    most = 2 * path.stat().st_size + UNCHECKED_WEIGHTS  # moments of half precision may be missing
    created = 0

    def counted(create: Callable[..., tf.Variable], **options: Any) -> tf.Variable:
        nonlocal created
        created += _num_values(options["initial_value"])
        if created > most:
            raise ValueError(f"its layers have more than {most} weights, which it does not hold")
        return create(**options)

    with tf.variable_creator_scope(counted):
        yield


def _num_values(initial: Any) -> int:
    """Count the values that a variable begins with; a function that makes them is traced and not run."""
    if not callable(initial):
        return math.prod(initial.shape)
    try:
        with tf.Graph().as_default():
            return math.prod(initial().shape)
    except (TypeError, ValueError, RuntimeError):  # it reads variables, such as the state of a seed
        trace = tf.function(initial, autograph=False).get_concrete_function()
        return math.prod(trace.output_shapes)


def _missing(path: Path) -> str:
    """Say why a file does not exist: it may be the model of a run that has not finished, or of an evaluation."""
    folder = path.parent
    if path.name != run_folder.MODEL or not (folder / run_folder.CONFIG).exists():
        return f"{path}: no such file; expected a .keras file, or a run folder."
    if (folder / run_folder.METRICS).exists():
        return f"{folder}: has results, but no {path.name}; expected the folder of a run that was trained."
    return (
        f"{folder}: the run has not finished: it has no {path.name} yet. Continue it with tfbig train --resume --out "
        f"{folder}."
    )


def _damage(path: Path) -> str:
    """Say what is wrong with the archive of a `.keras` file; empty if nothing is."""
    parts = {"config.json", "metadata.json", "model.weights.h5"}
    try:
        with zipfile.ZipFile(path) as file:
            torn, missing = file.testzip(), sorted(parts - {*file.namelist()})
    except (OSError, zipfile.BadZipFile, zlib.error, EOFError) as error:
        return reason_of(error) if path.suffix == ".keras" else ""
    if torn:
        return f"{torn} in it has other bytes than when it was written"
    return f"it has no {' and no '.join(missing)}" if missing else ""


def load_weights(model: Any, path: str | Path) -> None:
    """Load the weights of a file, or of a `.keras` file, into a model with the same variables.

    Raises:
        SourceError: The file is missing, damaged, or of another model.
    """
    file = Path(path)
    check_file(file)
    _check_parts(file)
    if file.suffix == ".keras":
        if damage := _damage(file):
            raise SourceError(f"{path}: is damaged: {damage}. Copy or save the file again.")
        _check_channels(model, file)
    try:
        with warnings.catch_warnings():
            # the layers of a container that Keras skips would keep random weights
            warnings.filterwarnings("error", "Skipping nested container")
            model.load_weights(file)
    except Exception as error:  # errors of zip, HDF5, JSON and Keras
        reason = reason_of(str(error).partition("List of objects")[0])
        raise SourceError(
            f"{path}: its weights cannot be loaded ({type(error).__name__}: {reason}). The file is damaged, or belongs "
            "to another network. Use weights of the same network."
        ) from error


def _check_channels(model: Any, path: Path) -> None:
    """Check that a model, built for the images of the data, has as many input channels as the one in a file.

    Raises:
        SourceError: It has another number.
    """
    inputs = getattr(model, "inputs", None)
    shape = inputs[0].shape if inputs else (model.get_build_config() or {}).get("input_shape")
    found, expected = _channels(shape), _channels_of(path)
    if found is not None and expected is not None and found != expected:
        raise SourceError(
            f"{path}: expects images of {counted(expected, 'channel')}, but those of the data have {found}. "
            f"{messages.other_channels(found, expected)}"
        )


def _channels_of(path: Path) -> int | None:
    """The channels of the first input of the model in a file; None if it does not say them."""
    with (
        suppress(ValueError, KeyError, TypeError, IndexError, AttributeError),
        zipfile.ZipFile(path) as archive,
    ):
        saved = json.loads(archive.read("config.json"))
        layers, built = saved["config"].get("layers", []), saved.get("build_config") or {}
        inputs = [each["config"] for each in layers if each["class_name"] == "InputLayer"]
        return _channels(inputs[0]["batch_shape"] if inputs else built.get("input_shape"))
    return None


def _channels(shape: Any) -> int | None:
    """The last length of the shape of images or volumes; None if it is another shape, or not known."""
    is_image = isinstance(shape, list | tuple) and len(shape) >= 4
    return shape[-1] if is_image and isinstance(shape[-1], int) else None


def _reason(error: Exception) -> str:
    """The cause of an error of Keras, without the configuration of the layer around it; empty if it has none."""
    text = " ".join(str(error).split()).partition("Full object config")[0]
    return reason_of(text.rpartition("Exception encountered: ")[2].strip())


def _import(name: str) -> None:
    sys.path.insert(0, os.getcwd())
    try:
        importlib.import_module(name)
    except ImportError as error:
        raise SourceError(f"--custom {name}: cannot be imported: {error}.") from error
    finally:
        sys.path.remove(os.getcwd())
