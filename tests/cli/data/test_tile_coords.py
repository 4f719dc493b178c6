"""The resolution of a run: what is asked for is recorded, and training, `--coords` and `tfbig predict` agree on it."""

from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
import tifffile
import yaml
from cli_runs import like_a_test, write_table

import train
from tfbig import SourceError, mil
from tfbig.cli.data import bags, tile_coords
from tfbig.cli.main import main
from tfbig.cli.settings.tasks import MILSettings
from tfbig.results import run_folder
from tfbig.sources import read_coords

ASKED = ["--mpp", "2", "--min-tissue", "0.3"]
TRAINING = ["--task", "mil", "--bags", "slides", "--epochs", "1", "--instances-at-once", "4"]


def write_pyramid(path, mpp, level_1, side):
    """Write a slide of two levels, of which none has exactly 2 um per pixel."""
    random = np.random.default_rng(len(path.name) + side)
    image = np.full((side, side + 30, 3), 240, np.uint8)
    image[side // 4 : -side // 4, side // 4 : -side // 4] = (130, 70, 160)
    image -= random.integers(0, 30, image.shape, np.uint8)
    per_cm = 1e4 / mpp
    resolution = {"resolution": (per_cm, per_cm), "resolutionunit": "CENTIMETER"}
    path.parent.mkdir(parents=True, exist_ok=True)
    with tifffile.TiffWriter(path) as file:
        options = {"photometric": "rgb", "tile": (64, 64)}
        file.write(image, subifds=1, **options, **resolution)
        rows, columns = (round(n / level_1) for n in image.shape[:2])
        chosen = (
            np.linspace(0, n - 1, m).astype(int)
            for n, m in zip(image.shape, (rows, columns), strict=False)
        )
        file.write(image[np.ix_(*chosen)], subfiletype=1, **options)


PIXELS = [(0.4941, 4.1), (0.25, 7.7), (1.03, 1.9), (0.4941, 3.97)]
"""Micrometres per pixel at level 0, and downsample of level 1, of the slides."""


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """A table of slides with different pixel sizes, whose levels do not hit the asked resolution."""
    folder = tmp_path_factory.mktemp("mixed")
    rows = []
    for number in range(6):
        mpp, level_1 = PIXELS[number % len(PIXELS)]
        write_pyramid(folder / f"s{number}.tif", mpp, level_1, round(331 * 2 / mpp) // 2)
        split = ("train", "train", "val", "val", "test", "test")[number]
        rows.append({"slide_id": f"s{number}", "label": ("a", "b")[number % 2], "split": split})
    return write_table(folder / "slides.csv", rows)


@pytest.fixture(scope="module")
def coords(table):
    """The tiles of these slides, by `tfbig tile --mpp 2`."""
    folder = table.parent / "tiles"
    with like_a_test():
        assert main(["tile", str(table.parent), *ASKED, "--tile", "16", "--out", str(folder)]) == 0
    return folder


@pytest.fixture
def seen(monkeypatch):
    """The bags that `tfbig predict` gives to the network, by slide."""
    explained = {}
    explain = mil.MIL.explain

    def recorded(model, bag):
        explained[bag.name] = (bag.coords, bag.read(0, bag.shape[0]))
        return explain(model, bag)

    monkeypatch.setattr(mil.MIL, "explain", recorded)
    return explained


def trained_bags(table, *flags):
    settings = train.settings_of([*TRAINING, "--data", str(table), *flags])
    data = bags.load(settings)
    return replace(settings, **data.decided), [
        bag for part in (data.train, data.val, data.test) for bag in part.bags
    ]


def test_tiles_that_are_missing_say_why(tmp_path):
    row = {"item": "slides/a.ome.tif", "reason": "is damaged. Copy it again."}
    run_folder.write_csv(tmp_path / run_folder.FAILED, [row])
    reason = r"a\.h5: is missing, because tfbig tile failed: is damaged\. Copy it again\."
    with pytest.raises(SourceError, match=reason):
        tile_coords.read(tmp_path / "a.h5")
    with pytest.raises(SourceError, match=r"b\.h5: there is no such file"):
        tile_coords.read(tmp_path / "b.h5")
    run_folder.write_csv(tmp_path / run_folder.FAILED, [{"item": "b", "error": "of another tool"}])
    with pytest.raises(SourceError, match=r"b\.h5: there is no such file"):
        tile_coords.read(tmp_path / "b.h5")


def test_two_slides_of_a_file(tmp_path):
    rows = [{"path": tmp_path / name} for name in ("a.svs", "a.tif")]
    with pytest.raises(SourceError, match=r"a\.svs and .*a\.tif would both have the file of tiles"):
        bags._read_coords(MILSettings(coords=str(tmp_path)), rows)


@pytest.mark.slow
def test_coords_record_what_was_asked_for(table, coords):
    settings, _ = trained_bags(table, "--coords", str(coords))
    assert (settings.mpp, settings.tile, settings.min_tissue) == (2.0, 16, 0.3)
    assert (settings.magnification, settings.level) == (None, None)


@pytest.mark.slow
def test_coords_equal_the_tiles_of_training(table, coords):
    _, with_coords = trained_bags(table, "--coords", str(coords))
    _, without = trained_bags(table, *ASKED, "--tile", "16")
    assert len(with_coords) == len(without) == 6
    for first, second in zip(with_coords, without, strict=True):
        np.testing.assert_array_equal(first.coords, second.coords)
        np.testing.assert_array_equal(
            first.read(0, first.shape[0]), second.read(0, second.shape[0])
        )


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("tissue", marks=pytest.mark.slow),
        pytest.param("coords with overlap", marks=pytest.mark.slow),
        pytest.param("coords", marks=pytest.mark.slow),
        pytest.param("foreground", marks=pytest.mark.slow),
    ],
)
def test_predict_uses_the_tiles_of_training(table, coords, tmp_path, seen, kind):
    flags = {
        "tissue": [*ASKED, "--tile", "16"],
        "coords": ["--coords", str(coords)],
        "coords with overlap": ["--coords", str(tmp_path / "overlap")],
        "foreground": [*ASKED, "--tile", "16", "--min-grey", "0.9"],
    }[kind]
    if kind == "coords with overlap":
        tile = [*ASKED, "--tile", "16", "--overlap", "4", "--out", str(tmp_path / "overlap")]
        assert main(["tile", str(table.parent), *tile]) == 0
    run, out = tmp_path / "run", tmp_path / "out"
    assert train.main([*TRAINING, "--data", str(table), *flags, "--out", str(run)]) == 0
    _, expected = trained_bags(table, *flags)
    seen.clear()
    slides = [str(table.parent / f"{bag.name}.tif") for bag in expected]
    assert main(["predict", str(run), *slides, "--out", str(out)]) == 0
    assert len(seen) == len(expected) == 6
    for bag in expected:
        (used,) = [pair for name, pair in seen.items() if f"{bag.name}.tif" in name]
        np.testing.assert_array_equal(used[0], bag.coords)
        np.testing.assert_array_equal(used[1], bag.read(0, bag.shape[0]))


@pytest.mark.slow
def test_whole_slides_record_what_was_asked_for(table, tmp_path):
    flags = ["--task", "images", "--images", "slides", "--data", str(table), "--mpp", "2"]
    flags += ["--latent", "8", "--head-width", "8", "--encoder", "small"]
    flags += ["--epochs", "1", "--batch-size", "1", "--head", "abmil"]
    assert train.main([*flags, "--out", str(tmp_path / "run")]) == 0
    assert yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())["mpp"] == 2.0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            ("--mpp", "1"),
            r"s0.h5: holds tiles that were made with --mpp 2, but --mpp is 1. Leave out --mpp",
        ),
        (
            ("--magnification", "10"),
            "made with --mpp 2, but --magnification is 10. Leave out --mag",
        ),
        (("--level", "1"), "made with --mpp 2, but --level is 1. Leave out --level"),
        (
            ("--tile", "32"),
            "s0.h5: holds tiles of 16 pixels, but tiles of 32 are asked for. Leave out --tile",
        ),
    ],
)
def test_flags_that_contradict_coords(table, coords, tmp_path, capsys, flags, message):
    out = tmp_path / "out"
    arguments = [
        *TRAINING,
        "--data",
        str(table),
        "--coords",
        str(coords),
        "--out",
        str(out),
        *flags,
    ]
    assert train.main(arguments) == 1
    assert message in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.slow
def test_flags_that_agree_with_coords(table, coords):
    flags = ("--coords", str(coords), "--tile", "16")
    assert trained_bags(table, *flags, "--mpp", "2")[0].mpp == 2.0
    assert trained_bags(table, *flags, "--magnification", "5")[0].magnification == 5.0


def as_clam(coords, folder, level):
    """Write files of CLAM, which name a pyramid level and no pixel size, and return the folder."""
    folder.mkdir()
    for path in coords.glob("*.h5"):
        made = read_coords(path)
        with h5py.File(folder / path.name, "w") as file:
            data = file.create_dataset("coords", data=made.coords)
            data.attrs.update({"patch_size": 16, "patch_level": level, "downsample": (2.0, 2.0)})
    return folder


def test_coords_of_clam(table, coords, tmp_path):
    folder = as_clam(coords, tmp_path / "clam", 1)
    settings, _ = trained_bags(table, "--coords", str(folder))
    assert (settings.level, settings.mpp, settings.magnification) == (1, None, None)
    with pytest.raises(
        Exception, match=r"s0.h5: .* 0.9882 micrometres per pixel on slide s0, but --mpp is 2"
    ):
        trained_bags(table, "--coords", str(folder), "--mpp", "2")


def test_coords_of_trident(table, coords, tmp_path):
    folder = tmp_path / "trident"
    folder.mkdir()
    for path in coords.glob("*.h5"):
        made = read_coords(path)
        with h5py.File(folder / f"{path.stem}_patches.h5", "w") as file:
            data = file.create_dataset("coords", data=made.coords)
            attributes = {"patch_size": 16, "patch_size_level0": made.size_at_level_0}
            data.attrs.update(attributes | {"target_magnification": 5, "overlap": 0})
    settings, _ = trained_bags(table, "--coords", str(folder))
    assert (settings.magnification, settings.mpp) == (5.0, None)
    with pytest.raises(Exception, match="made with --magnification 5, but --mpp is 1"):
        trained_bags(table, "--coords", str(folder), "--mpp", "1")


def test_magnification_of_trident_that_is_another_size(table, coords, tmp_path):
    """Tiles of 1.87 um that TRIDENT calls 5x: a run saves 1.87 um, so that predictions have it on every slide."""
    folder = tmp_path / "trident"
    folder.mkdir()
    for number, path in enumerate(sorted(coords.glob("*.h5"))):
        mpp = PIXELS[number % len(PIXELS)][0]
        with h5py.File(folder / path.name, "w") as file:
            data = file.create_dataset("coords", data=read_coords(path).coords)
            attributes = {"patch_size": 16, "patch_size_level0": round(16 * 1.87 / mpp)}
            data.attrs.update(attributes | {"target_magnification": 5, "overlap": 0})
    settings, _ = trained_bags(table, "--coords", str(folder))
    assert settings.magnification is None
    assert settings.mpp == pytest.approx(1.87, rel=0.03)
    with pytest.raises(Exception, match=r"holds tiles of 1\.8.* but --magnification is 5\. Leave"):
        trained_bags(table, "--coords", str(folder), "--magnification", "5")


def test_coords_that_differ(table, coords, tmp_path):
    folder = tmp_path / "mixed"
    folder.mkdir()
    for path in coords.glob("*.h5"):
        (folder / path.name).write_bytes(path.read_bytes())
    with h5py.File(folder / "s3.h5", "a") as file:
        file["coords"].attrs["tfbig_mpp"] = 1.0
    with pytest.raises(Exception, match=r"s3.h5: .* made with --mpp 1, but --mpp is 2"):
        trained_bags(table, "--coords", str(folder))


@pytest.mark.slow
@pytest.mark.parametrize("flags", [("--mpp", "1"), ("--magnification", "10"), ("--level", "0")])
def test_predict_refuses_flags_that_contradict_coords(
    slide_bags_run, coords, table, tmp_path, capsys, flags
):
    arguments = [str(slide_bags_run.folder), str(table.parent / "s0.tif"), "--coords", str(coords)]
    assert main(["predict", *arguments, *flags, "--out", str(tmp_path / "out")]) == 3
    name = flags[0]
    assert (
        f"s0.h5: holds tiles that were made with --mpp 2, but {name} is" in capsys.readouterr().err
    )


def test_two_files_of_tiles_of_a_slide(tmp_path: Path) -> None:
    for name in ("a.h5", "a_patches.h5"):
        (tmp_path / name).touch()
    with pytest.raises(SourceError, match=r"a\.h5 and .*a_patches\.h5 both belong to a\.tif"):
        tile_coords.file_of(tmp_path, "a.tif")
