"""Files of flags: `--config`, and the settings that a run saved."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NoReturn

from tfbig.cli.settings import flag_errors
from tfbig.cli.settings.flag import flag, flags_of
from tfbig.cli.settings.parser import with_dashes
from tfbig.errors import SourceError
from tfbig.system import yaml_files

PACKAGE = Path(__file__).resolve().parents[2]
"""Folder of the package, which holds `recipes`."""


DATA_OF_PAPERS = {
    "images": ("num_images", "canvas", "factors", "digits"),
    "mil": ("num_bags", "instances", "share", "key"),
}
"""Settings of drawn and composed data in the files of former runs, by task; recipes write such data as folders now."""
ABSENT: dict[str, dict[str, Any]] = {
    "images": {"warm_start": 0, "loss": "cross_entropy"},
    "mil": {"published": False},
}
"""Settings in the files of former runs that are gone, and the values with which they changed nothing."""


def config_flag(**options: Any) -> Any:
    """Return the field of the flag `--config`."""
    return flag(
        metavar="FILE",
        help="YAML file of flags (device_memory: 512MB), such as config.yaml of a run, or a recipe that is installed "
        "with tfbig, such as recipes/abmil-original.yaml; flags on the command line win",
        **options,
    )


def exit_with(message: str) -> NoReturn:
    """Print a message about wrong flags in one line, which names the program and its command, and exit with 2."""
    flag_errors.exit_with(flag_errors.program(), message)


def read_tokens(file: str | Path, settings: type) -> list[str]:
    """Read a YAML file as tokens of the command line, so that they are checked like flags.

    Args:
        file: Path of the file.
        settings: Settings class whose flags of one session the file must not hold.
    """
    return tokens_of(read_yaml(file), file, settings)


def tokens_of(values: dict[Any, Any], file: str | Path, settings: type) -> list[str]:
    """Return the settings of a file as tokens of the command line.

    Args:
        values: Settings by name.
        file: Path of the file, for the error.
        settings: See `read_tokens`.
    """
    sessions = {name for name, each in flags_of(settings).items() if not each.kind.saved}
    for name in values:
        if str(name).replace("-", "_") in sessions:
            exit_with(f"{file}: '{name}' can be given on the command line only")
    absent = {*DATA_OF_PAPERS.get(values.get("task", ""), ()), *_without_effect(values)}
    used = {name: value for name, value in values.items() if name not in absent}
    return [token for name, value in used.items() for token in _tokens(name, value)]


def _without_effect(values: dict[Any, Any]) -> set[str]:
    """Return the settings that are gone and had no effect."""
    gone = ABSENT.get(values.get("task", ""), {})
    return {name for name, value in gone.items() if values.get(name) == value}


def read_yaml(file: str | Path) -> dict[Any, Any]:
    """Read the `flag: value` lines of a YAML file.

    Args:
        file: Path of the file; if there is none of this path, `recipes/NAME.yaml` is that of the package.
    """
    path = _located(file)
    if not path.exists():
        exit_with(f"{file}: no such file; expected a YAML file of flags, or a recipe of tfbig")
    try:
        values = yaml_files.read_yaml(path) or {}
    except SourceError as error:
        exit_with(str(error))
    if not isinstance(values, dict):
        exit_with(f"{file}: holds no `flag: value` lines; expected e.g. `epochs: 6`")
    return values


def _located(file: str | Path) -> Path:
    """Return the path of a file of flags, which may be a recipe of the package."""
    path = Path(file)
    is_recipe = path.parent == Path("recipes") and not path.exists()
    return PACKAGE / path if is_recipe else path


def _tokens(name: Any, value: Any) -> list[str]:
    """Return a line of a YAML file as tokens: `True` is a flag alone, a list its values."""
    if value is None or value is False:
        return []
    token = with_dashes(f"--{name}")
    if isinstance(value, list):  # else a value that begins with "-" would be a flag
        return [token, *(f" {v}" if str(v).startswith("-") else str(v) for v in value)]
    return [token] if value is True else [f"{token}={value}"]
