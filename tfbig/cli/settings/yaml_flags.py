"""Files of settings: recipes, and the settings that a run saved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tfbig.choices import CONFIG
from tfbig.cli.paths import FlagError
from tfbig.cli.settings.merge import Layer
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


def layer_of(file: str | Path) -> Layer:
    """Read the settings of a file, without those that have no meaning any more.

    Raises:
        FlagError: There is no such file, or it holds no settings.
    """
    values = read_yaml(file)
    gone = {*DATA_OF_PAPERS.get(values.get("task", ""), ()), *_without_effect(values)}
    used = {name: value for name, value in values.items() if name not in gone}
    return Layer(used, str(file), is_run=Path(file).name == CONFIG)


def _without_effect(values: dict[Any, Any]) -> set[str]:
    """The settings that are gone and had no effect."""
    gone = ABSENT.get(values.get("task", ""), {})
    return {name for name, value in gone.items() if values.get(name) == value}


def read_yaml(file: str | Path) -> dict[Any, Any]:
    """Read the `setting: value` lines of a YAML file; `recipes/NAME.yaml` may be a recipe of the package.

    Raises:
        FlagError: There is no such file, or it holds no such lines.
    """
    path = _located(file)
    if not path.exists():
        raise FlagError(
            f"{file}: no such file; expected a YAML file of flags, or a recipe of tfbig"
        )
    try:
        values = yaml_files.read_yaml(path) or {}
    except SourceError as error:
        raise FlagError(str(error)) from error
    if not isinstance(values, dict):
        raise FlagError(f"{file}: holds no `flag: value` lines; expected e.g. `epochs: 6`")
    return values


def _located(file: str | Path) -> Path:
    """The path of a file of settings, which may be a recipe of the package."""
    path = Path(file)
    is_recipe = path.parent == Path("recipes") and not path.exists()
    return PACKAGE / path if is_recipe else path
