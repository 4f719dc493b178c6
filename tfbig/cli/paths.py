"""Paths of the command line: each must exist and be of its kind before anything is read or written."""

from pathlib import Path

from tfbig import SourceError

_FOLDERS = ("coords", "backbone", "test_only", "beside")
_FILES = ("splits", "mpp_of", "encoder_weights")
_ARGUMENTS = {"model": "file or folder", "folder": "folder"}
"""What the arguments without a flag are, in commands that read them from disk."""


class FlagError(SourceError):
    """Raised if a flag or an argument is wrong; the command ends with exit code 2."""


def check(settings):
    """Check the paths of the settings of a command.

    Args:
        settings: Settings of the command.

    Raises:
        FlagError: A path does not exist, or is a file where a folder is expected or the reverse.
    """
    values = vars(settings)
    data = "file or folder" if "slides" in (values.get("bags"), values.get("images")) else "folder"
    for names, kind in ((_FOLDERS, "folder"), (_FILES, "file"), (("data",), data)):
        for name in names:
            if values.get(name):
                check_path(f"--{name.replace('_', '-')} {values[name]}", values[name], kind)
    slides = values.get("slides")
    if isinstance(slides, list):
        for path in slides:
            check_path(path, path, "file or folder")
    elif slides:
        check_path(f"--slides {slides}", slides, "folder")


def check_argument(name, value):
    """Check an argument without a flag: `model` of predict, `folder` of report and dataset.

    Args:
        name: Name of the argument.
        value: The path.

    Raises:
        FlagError: As in `check`.
    """
    check_path(value, value, _ARGUMENTS[name])


def check_path(shown, path, kind):
    """Check one path.

    Args:
        shown: The path, as an error shows it: after its flag.
        path: The path.
        kind: "file", "folder" or "file or folder".

    Raises:
        FlagError: As in `check`.
    """
    path = Path(path)
    if not path.exists():
        raise FlagError(
            f"{shown}: no such {kind}. Check the path (working directory: {Path.cwd()})."
        )
    actual = "folder" if path.is_dir() else "file"
    if actual not in kind:
        raise FlagError(f"{shown}: is a {actual}; expected a {kind}. Check the path.")
