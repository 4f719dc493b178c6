"""Recipes are valid settings of train.py."""

import pytest
import yaml
from samples import ROOT

import train
from tfbig.cli.settings.flag import flags_of, saved_value
from tfbig.models import pretrained

TASKS = {
    "volumes": "volume-segmentation",
    "patchgd-segmentation": "patchgd-segmentation",
    "patchgd": "images",
    "whole-slides": "images",
    "gigapixel": "segmentation",
    "": "mil",
}
"""Task of the recipes whose names begin so; the first that fits."""
FROM_RANDOM = {
    **dict.fromkeys(
        [
            f"abmil-acc-{name}"
            for name in ("imagenette-as-published", "qmnist-as-published", "qmnist-as-coded")
        ],
        "from scratch, section 4",
    ),
    "patchgd-imagenet100-as-published": "weights of ImageNet have seen its images",
}
"""Recipes of encoders with published weights that do not start from them, and why."""
RECIPES = sorted((ROOT / "recipes").glob("*.yaml"))


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda p: p.stem)
def test_encoders_start_from_published_weights(recipe):
    """The papers train, or freeze, encoders that start from ImageNet."""
    written = yaml.safe_load(recipe.read_text())
    published = written.get("encoder") in pretrained.IMAGENET and recipe.stem not in FROM_RANDOM
    assert written.get("encoder_weights") == ("imagenet" if published else None)


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda p: p.stem)
def test_recipe(recipe):
    options = train.settings_of(["--config", str(recipe), "--seed", "2"])
    assert options.task == next(
        task for name, task in TASKS.items() if recipe.stem.startswith(name)
    )
    assert options.seed == 2
    written = yaml.safe_load(recipe.read_text())
    for name, value in written.items():
        assert saved_value(flags_of(type(options))[name], getattr(options, name)) == value
    assert recipe.read_text().startswith("#")  # where it is from
    base = recipe.stem.removesuffix("-as-coded").removesuffix("-as-published").removesuffix("-fast")
    assert f"`{base}" in (ROOT / "recipes" / "README.md").read_text()
