"""Files of settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from tfbig.cli.paths import FlagError
from tfbig.cli.settings import yaml_flags


def test_layer(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("batch_size: 4\nfast: true\nnone: null\nnames: [a, -b]\n")
    layer = yaml_flags.layer_of(file)
    assert layer.values == {"batch_size": 4, "fast": True, "none": None, "names": ["a", "-b"]}
    assert (layer.file, layer.is_run) == (str(file), False)
    assert yaml_flags.layer_of(file.rename(tmp_path / "config.yaml")).is_run


def test_recipes_are_found_in_every_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    recipe = Path("recipes") / "abmil-original.yaml"
    assert yaml_flags.read_yaml(recipe)["bags"] == "folder"
    recipe.parent.mkdir()
    recipe.write_text("bags: slides\n")  # a file of the user comes first
    assert yaml_flags.read_yaml(str(recipe))["bags"] == "slides"
    with pytest.raises(FlagError):
        yaml_flags.read_yaml("abmil-original.yaml")


def test_what_former_runs_saved(tmp_path: Path) -> None:
    """Settings of drawn data had no effect on runs of other data, which continue."""
    file = tmp_path / "config.yaml"
    file.write_text("task: mil\nbags: slides\nnum_bags: [1, 2, 3]\nkey: 9\npublished: false\n")
    assert yaml_flags.layer_of(file).values == {"task": "mil", "bags": "slides"}
    file.write_text("task: images\ncanvas: 256\nwarm_start: 4\nloss: binary_cross_entropy\n")
    left = {"task": "images", "warm_start": 4, "loss": "binary_cross_entropy"}
    assert yaml_flags.layer_of(file).values == left  # unknown settings are refused


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "c.yaml: no such file; expected a YAML file of flags"),
        ("a: [", "c.yaml: is not YAML: "),
        ("a: 2024-99-99\n", "c.yaml: is not YAML: "),
        ("a: !!bool x\n", "c.yaml: is not YAML: 'x'"),
        ("a: !!timestamp x\n", "c.yaml: is not YAML: "),
        ("[" * 2000 + "]" * 2000, "c.yaml: is not YAML: "),
        ("a: 1" + ":1" * 10**5, "c.yaml: is not YAML: a number of 200001 characters"),
        ("a: " + "x" * 2**21, "c.yaml: has 2.1 MiB; settings have at most"),
        ("- a\n", "c.yaml: holds no `flag: value` lines"),
    ],
)
def test_wrong_files(text: str | None, message: str, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "c.yaml").write_text(text)
    with pytest.raises(FlagError) as error:
        yaml_flags.layer_of(tmp_path / "c.yaml")
    assert message in str(error.value)
    assert "\n" not in str(error.value)
