"""Flags of settings classes: order, kinds, and what is saved."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, dataclass, replace

import pytest

from tfbig.cli.settings import flag as flags
from tfbig.cli.settings.feature_settings import FeaturesSettings
from tfbig.cli.settings.flag import DECIDES_RESULT, ENVIRONMENT, THIS_START, TUNABLE, flag
from tfbig.cli.settings.slide_settings import PredictSettings, TileSettings
from tfbig.cli.settings.tasks import ImageSettings, MILSettings, SegmentationSettings
from tfbig.tasks import TASKS


@dataclass(frozen=True, kw_only=True)
class First:
    SECTION = "data"

    table: str = flag("a.csv", help="table", kind=ENVIRONMENT, path=True)
    rate: float = flag(0.1, help="rate", kind=TUNABLE, type=float)


@dataclass(frozen=True, kw_only=True)
class Second:
    names: tuple[str, ...] = flag((), help="names", nargs="+")
    quiet: bool = flag(False, help="quiet", kind=THIS_START)


@dataclass(frozen=True, kw_only=True)
class Whole(First, Second):
    SECTION = "run"

    rate: float = flag(0.2, help="another rate", kind=TUNABLE, type=float)
    last: int = flag(1, help="last", type=int)


def test_order_and_sections() -> None:
    sections = {"table": "data", "rate": "data", "names": "run", "quiet": "run", "last": "run"}
    declared = flags.flags_of(Whole)
    assert {name: each.section for name, each in declared.items()} == sections
    assert list(declared) == list(sections)
    assert flags.flags_of(Whole)["rate"].help == "another rate"
    assert Whole().rate == 0.2


def test_another_default() -> None:
    """A flag that is declared again keeps its help, kind and type, but for what is given."""

    @dataclass(frozen=True, kw_only=True)
    class Other(First):
        table: str = "b.csv"
        rate: float = flag(0.3, choices=[0.3])

    first, other = flags.flags_of(First), flags.flags_of(Other)
    assert (Other().rate, Other().table) == (0.3, "b.csv")
    assert other["table"] == replace(first["table"], default="b.csv")
    assert other["rate"] == replace(first["rate"], default=0.3, choices=[0.3])


def test_what_is_saved(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    settings = Whole(names=("a", "b"), quiet=True)
    decides = {"rate": 0.2, "names": ["a", "b"], "last": 1}
    assert flags.to_save(settings) == {"table": str(tmp_path / "a.csv"), **decides}
    assert flags.deciding(settings) == decides


def test_words_are_not_saved_as_paths(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    for value, saved in (("imagenet", "imagenet"), ("w.h5", str(tmp_path / "w.h5"))):
        assert flags.to_save(MILSettings(encoder_weights=value))["encoder_weights"] == saved


def test_settings_do_not_change() -> None:
    with pytest.raises(FrozenInstanceError):
        MILSettings().epochs = 3  # type: ignore[misc]


PATHS = {
    *("data", "slides", "coords", "splits", "mpp_of", "encoder_weights", "backbone", "test_only"),
    "features",
}
PLACES = {
    *("out", "scratch", "devices", "device_memory", "host_memory", "disk", "oversubscription"),
    *("strict", "confine", "tensorboard", "checkpoint_minutes", "instances_at_once", *PATHS),
}
TUNABLES = {"epochs", "lr", "batch_size", "accumulate", "strategy", "sync_norm", "deterministic"}
SESSIONS = {"config", "resume", "dry_run", "quiet", "beside"}


@pytest.mark.parametrize("settings", [each.settings_class() for each in TASKS.values()])
def test_kinds_of_a_training_run(settings: type) -> None:
    declared = flags.flags_of(settings)
    kinds = {ENVIRONMENT: PLACES, TUNABLE: TUNABLES, THIS_START: SESSIONS}
    for name, each in declared.items():
        expected = next((kind for kind, names in kinds.items() if name in names), DECIDES_RESULT)
        assert each.kind == expected, name
        is_place = name == "tissue" and "background" in declared  # else a method only
        assert each.path == (name in PATHS or is_place), name
    assert declared["mode"].same_results == ("device", "unified", "offload")


@pytest.mark.parametrize("settings", [TileSettings, PredictSettings, FeaturesSettings])
def test_settings_that_results_of_slides_depend_on(settings: type) -> None:
    others = {"slides", "strict", "quiet", "dry_run", "config", "out", "mpp_of", "reader", "shard"}
    others |= {"encoder_weights", "batch_size", "list"}  # weights_sha256 decides
    others |= {"slide_mpp", "dask", "device_memory", "host_memory", "disk", "scratch"}
    declared = flags.flags_of(settings)
    assert {name for name, each in declared.items() if not each.kind.decides} == others & set(
        declared
    )


def test_every_task_has_settings() -> None:
    for name, settings in ((name, each.settings_class()) for name, each in TASKS.items()):
        assert settings().task == name
    assert SegmentationSettings().mode == "offload"
    assert ImageSettings().mode == "offload"
