"""Recipes are valid settings of train.py."""

import pytest
import yaml
from samples import ROOT

import train
from tfbig.cli.settings.flag import flags_of, saved_value

RECIPES = sorted((ROOT / "recipes").glob("*.yaml"))


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda p: p.stem)
def test_recipe(recipe):
    options = train.settings_of(["--config", str(recipe), "--seed", "2"])
    tasks = ("patchgd-segmentation", "patchgd")
    assert options.task == next((task for task in tasks if recipe.stem.startswith(task)), "mil")
    assert options.seed == 2
    written = yaml.safe_load(recipe.read_text())
    for name, value in written.items():
        assert saved_value(flags_of(type(options))[name], getattr(options, name)) == value
    assert recipe.read_text().startswith("#")  # where it is from
    base = recipe.stem.removesuffix("-as-coded").removesuffix("-as-published")
    assert f"`{base}" in (ROOT / "recipes" / "README.md").read_text()
