"""Settings from layers of values: precedence, checks, and the way from settings to a file and back."""

from __future__ import annotations

import math
from dataclasses import MISSING, dataclass, fields, replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import settings as with_settings
from hypothesis import strategies as st

import train
from tfbig.cli.main import main
from tfbig.cli.paths import FlagError
from tfbig.cli.settings import merge, training, value_types
from tfbig.cli.settings.commands import COMMANDS
from tfbig.cli.settings.flag import (
    GIVEN,
    REQUIRED,
    THIS_START,
    Flag,
    Unless,
    flag,
    flags_of,
    saved_value,
    to_save,
    with_current_names,
)
from tfbig.cli.settings.merge import Layer
from tfbig.cli.settings.slide_settings import PredictSettings
from tfbig.tasks import TASKS

CLASSES: list[Any] = [
    *(task.settings_class() for task in TASKS.values()),
    *(c.settings for c in COMMANDS.values() if c.settings),
]


@dataclass(frozen=True, kw_only=True)
class Settings:
    model: str = flag("abmil", choices=["abmil", "dtfd"], help="model")
    bags: int = flag(4, type=value_types.count, help="bags", only_if={"model": ("dtfd",)})
    tiers: bool = flag(False, help="tiers", only_if={"bags": Unless((4,))})
    names: tuple[str, ...] | None = flag(nargs="+", help="names", was=("labels",))
    size: tuple[int, int] = flag((1, 2), nargs=2, type=int, metavar="N", help="size")
    rate: float = flag(0.5, type=float, help="rate", only_if={"names": GIVEN})
    quiet: bool = flag(False, kind=THIS_START, help="quiet")


@dataclass(frozen=True, kw_only=True)
class Required:
    out: str = flag(REQUIRED, help="folder, e.g. a; or b")
    more: str = flag(REQUIRED, help="")


def merged(*layers: Layer, settings: Any = Settings) -> Any:
    return merge.merged(settings, layers, "prog")


def test_later_layers_win() -> None:
    saved = Layer({"model": "dtfd", "bags": 5, "names": ["a"]}, "config.yaml", is_run=True)
    recipe = Layer({"bags": 6, "size": [3, 4]}, "a.yaml")
    line = Layer({"bags": ["7"]})
    assert merged() == Settings()
    assert merged(saved, recipe, line) == Settings(model="dtfd", bags=7, names=("a",), size=(3, 4))
    assert merged(saved).bags == 5
    assert merged(saved, recipe).bags == 6


def test_a_layer_may_take_back_a_switch() -> None:
    switch = Layer({"tiers": True, "bags": 5, "model": "dtfd"}, "a.yaml")
    assert merged(switch).tiers
    assert not merged(switch, Layer({"tiers": False}, "b.yaml")).tiers
    assert merged(switch, Layer({"tiers": None}, "b.yaml")).tiers  # nothing is said


def test_derived_values_win() -> None:
    settings = merge.merged(
        Settings, [Layer({"model": ["dtfd"]})], "prog", lambda given: {"bags": len(given)}
    )
    assert settings.bags == 1


@pytest.mark.parametrize(
    ("values", "file", "message"),
    [
        ({"rate": ["x"]}, "", "--rate: expected a number; found 'x'. `prog --help` lists all"),
        ({"rate": "x"}, "a.yaml", "a.yaml: rate: expected a number; found 'x'. `prog"),
        ({"bags": 0}, "a.yaml", "a.yaml: bags: '0' must be at least 1."),
        ({"bags": 1.5}, "a.yaml", "bags: expected a whole number, 1 or more; found '1.5'."),
        ({"bags": True}, "a.yaml", "a.yaml: bags: expected one value."),
        ({"bags": []}, "", "--bags: expected one value."),
        ({"size": ["1"]}, "", "--size: expected 2 values: N N."),
        ({"names": []}, "", "--names: expected at least one value."),
        ({"tiers": ["3"]}, "", "--tiers: expected no value; found '3'."),
        ({"model": ["abmill"]}, "", "invalid choice 'abmill' of --model; did you mean 'abmil'?"),
        ({"model": "x"}, "a.yaml", "invalid choice 'x' of a.yaml: model. Choose from abmil, dtfd"),
        ({"modle": "x"}, "a.yaml", "a.yaml: has no setting 'modle' to read. Did you mean model?"),
        ({"quiet": True}, "a.yaml", "a.yaml: 'quiet' can be given on the command line only."),
        ({3: "x"}, "a.yaml", "a.yaml: has no setting '3' to read."),
        ({"bags": ["5"]}, "", "--bags 5: belongs to --model dtfd; this run has --model abmil. Le"),
        ({"bags": 5}, "a.yaml", "a.yaml: bags: 5: belongs to --model dtfd; this run has"),
        ({"tiers": True}, "", "--tiers: belongs to --bags other than 4; this run has --bags 4."),
        ({"rate": ["1"]}, "", "--rate 1.0: belongs to --names; this run has no --names. Leave it"),
    ],
)
def test_wrong_values(values: dict[str, Any], file: str, message: str) -> None:
    with pytest.raises(FlagError) as error:
        merged(Layer(values, file))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_missing() -> None:
    with pytest.raises(FlagError) as error:
        merged(settings=Required)
    assert str(error.value).startswith("--out is missing: folder, e.g. a. --more is missing. `prog")


def test_what_does_not_apply_is_only_refused_where_it_was_meant() -> None:
    assert merged(Layer({"bags": ["4"]})).bags == 4  # the default says nothing
    of_run = Layer({"model": "abmil", "bags": 5}, "config.yaml", is_run=True)
    assert merged(of_run).bags == 5
    recipe = Layer({"model": "dtfd", "bags": 5}, "a.yaml")
    assert merged(recipe, Layer({"model": ["abmil"]})).model == "abmil"
    told = {"model": "abmil"}  # by the data
    of_file = Layer({"bags": 5}, "a.yaml")
    assert merge.merged(Settings, [of_file], "prog", lambda given: {**given, **told}).bags == 5
    with pytest.raises(FlagError, match="--bags 5: belongs to --model dtfd"):
        merge.merged(Settings, [Layer({"bags": ["5"]})], "prog", lambda given: {**given, **told})


def test_former_names() -> None:
    assert merged(Layer({"labels": ["a", "b"]}, "a.yaml")).names == ("a", "b")


RENAMED = [
    ("task: mil\nforeground: 0.5\nclasses: 3\n", {"min_grey": 0.5, "num_classes": 3}),
    ("task: images\nmode: patchgd\nstride: 20\nclasses: 3\n", {"patch_stride": 20}),
    ("task: volume-segmentation\nfilters: [4, 8]\n", {"stage_filters": (4, 8)}),
    ("task: volume-segmentation\nforeground: 0.5\n", {"foreground": 0.5}),
    ("task: scenes\nfilters: 8\n", {"filters": 8}),
]


@pytest.mark.parametrize(("text", "values"), RENAMED)
@pytest.mark.parametrize("name", ["config.yaml", "recipe.yaml"])
def test_files_of_before(text: str, values: dict[str, Any], name: str, tmp_path: Path) -> None:
    """Runs and recipes that were written with former names load; the command line says the new ones."""
    (tmp_path / name).write_text(text)
    settings = train.settings_of(["--config", str(tmp_path / name)])
    assert {key: getattr(settings, key) for key in values} == values
    saved = training.current_names(yaml.safe_load(text))
    assert {*values} <= {*saved}
    for line in text.splitlines()[1:]:
        old = line.partition(":")[0]
        if old not in vars(settings):
            with pytest.raises(FlagError, match=f"^--{old} is now --"):
                train.settings_of(["--task", settings.task, f"--{old}", "1"])


def test_names_of_predictions(capsys: pytest.CaptureFixture[str]) -> None:
    for old, new in (("classes", "class-names"), ("stride", "pad-to")):
        assert main(["predict", "m", "s", "--out", "o", f"--{old}", "a"]) == 2
        assert f"--{old} is now --{new}." in capsys.readouterr().err
    assert with_current_names({"classes": ["a"]}, PredictSettings) == {"class_names": ["a"]}


def test_files_may_have_numbers_for_text_and_dashes() -> None:
    values = {"names": [1, "-b", "--c=1"], "rate": "1e-3"}
    assert merged(Layer(values, "a.yaml")) == Settings(names=("1", "-b", "--c=1"), rate=1e-3)


def value_of(declared: Flag) -> st.SearchStrategy[Any]:
    """Values that a flag can have."""
    numbers = {
        int: st.integers(-5, 5),
        float: st.floats(allow_nan=False, allow_infinity=False),
        value_types.count: st.integers(1, 10**6),
        value_types.split_share: st.integers(1, 100),
        value_types.count_from_zero: st.integers(0, 10**6),
        value_types.two_or_more: st.integers(2, 10**6),
        value_types.up_to_five: st.integers(1, 5),
        value_types.positive: st.floats(1e-300, 1e300),
        value_types.above_one: st.floats(math.nextafter(1, 2), 1e300),
        value_types.share: st.floats(0, 1),
        value_types.from_zero: st.floats(0, 1e300),
        value_types.plane: st.integers(0, 9) | st.just("max"),
        value_types.sampling: st.integers(1, 9) | st.sampled_from([0.25, 1.0]),
        value_types.inner_steps: st.integers(1, 9) | st.just("all"),
    }
    if declared.choices is not None:
        single: st.SearchStrategy[Any] = st.sampled_from(list(declared.choices))
    elif declared.is_switch:
        return st.booleans()
    elif declared.type in numbers:
        single = numbers[declared.type]
    elif declared.type is None and not declared.path:
        single = st.text("abc -=:#'\"\\é", min_size=1, max_size=5)
    else:
        default = None if declared.default is MISSING else declared.default
        return st.just(default)
    if declared.nargs is None or declared.nargs == "?":
        return single
    size = declared.nargs if isinstance(declared.nargs, int) else None
    return st.lists(single, min_size=size or 1, max_size=size or 3).map(tuple)


@pytest.mark.parametrize("settings", CLASSES, ids=lambda each: each.__name__)
@with_settings(max_examples=20)
@given(data=st.data())
def test_settings_come_back_from_a_file(settings: type, data: st.DataObject) -> None:
    """`config.yaml` of a run gives the settings of the run, whatever they are."""
    flags = flags_of(settings)
    values = {name: next(iter(each.choices or "x")) for name, each in flags.items()}
    required = {
        name: (values[name],) if each.nargs else values[name]
        for name, each in flags.items()
        if each.default is MISSING
    }
    names = data.draw(st.lists(st.sampled_from(sorted(flags)), max_size=6, unique=True))
    drawn = {name: data.draw(value_of(flags[name]), name) for name in names}
    drawn = {name: value for name, value in drawn.items() if flags[name].kind.saved}
    whole = settings(**required | drawn)
    text = yaml.safe_dump({k: v for k, v in to_save(whole).items() if k not in required})
    layer = Layer(yaml.safe_load(text), "config.yaml", is_run=True)
    given_before = Layer(required, "", is_run=True)
    again = merge.merged(settings, [given_before, layer], "prog")
    for each in fields(settings):
        name = each.name
        old = saved_value(flags[name], getattr(whole, name))
        if name in required:
            continue
        assert saved_value(flags[name], getattr(again, name)) == old, name
    assert replace(again, **vars(whole)) == whole
