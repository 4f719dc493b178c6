"""Models in `.keras` files, which may be anybody's: they are data, and none of their code is run."""

import importlib
import os
import sys
from pathlib import Path

import keras

from tfbig import SourceError


def add_flag(add):
    """The flag that lets code in."""
    add(
        "--custom",
        nargs="+",
        default=[],
        metavar="MODULE",
        help="Python modules, from this folder or installed, that register layers of the model "
        "(keras.saving.register_keras_serializable); their code is run",
    )


def load(path, custom=(), compiled=False):
    """The model of a file.

    Keras' safe mode: layers, losses and functions are those of Keras, of tfbig and of its models, and those that
    `custom` registers; a file with a Lambda, or a class of any other module, is refused, and files that it points to
    are not read.

    Args:
        path: `*.keras`.
        custom: names of modules that are imported first.
        compiled: whether loss and optimizer are wanted.

    Raises:
        SourceError: there is no such file or module, or the file is damaged or refused.
    """
    path = Path(path)
    if not path.exists():
        raise SourceError(
            f"{path}: there is no such file; expected a .keras file, or a run folder."
        )
    for name in custom:
        _import(name)
    try:
        return keras.saving.load_model(path, compile=compiled, safe_mode=True)
    except Exception as error:  # zip's, HDF5's, JSON's, Keras' own
        raise SourceError(
            f"{path}: cannot be loaded as a Keras model ({type(error).__name__}: {_reason(error)}). Save it with "
            "model.save('name.keras'); for layers of your own, name the module that registers them: --custom MODULE."
        ) from error


def _reason(error):
    """What Keras says at the end of a page of configuration."""
    text = " ".join(str(error).split()).partition("Full object config")[0]
    return text.rpartition("Exception encountered: ")[2].strip()


def _import(name):
    sys.path.insert(0, os.getcwd())
    try:
        importlib.import_module(name)
    except ImportError as error:
        raise SourceError(f"--custom {name}: cannot be imported: {error}.") from error
    finally:
        sys.path.remove(os.getcwd())
