"""The console command `tfbig`: what it prints, writes, skips, and how it ends."""

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import h5py
import numpy as np
import pytest
import tensorflow as tf
import tifffile
import yaml
from PIL import Image
from samples import ROOT

from tfbig import SourceError
from tfbig.cli import slide_batch
from tfbig.cli.commands import doctor, tile
from tfbig.cli.main import main
from tfbig.sources import read_coords
from tfbig.sources.slides import openslide
from tfbig.system import signals

DATA = ROOT / "tests" / "data"
RUN = {"report.html", "versions.json", "views"}
"""What every run leaves."""


def slide(path, side=640, **options):
    """A bright slide with a purple square in its middle."""
    base = np.full((side, side, 3), 240, np.uint8)
    base -= np.random.default_rng(0).integers(0, 5, base.shape, np.uint8)
    base[side // 4 : -side // 4, side // 4 : -side // 4] = (150, 80, 160)
    known = {"resolution": (20000, 20000), "resolutionunit": "CENTIMETER"} | options  # 0.5 um
    tifffile.imwrite(path, base, photometric="rgb", tile=(128, 128), **known)
    return path


@pytest.fixture
def slides(tmp_path):
    folder = tmp_path / "slides"
    folder.mkdir()
    for name in ("a.tif", "b.ome.tif"):
        slide(folder / name, **({"metadata": None} if "ome" in name else {}))
    return folder


def failures(out):
    return list(csv.DictReader((out / "failed.csv").read_text().splitlines()))


def test_tiles_of_a_folder(slides, tmp_path, capsys):
    out = tmp_path / "out"
    flags = ("--out", str(out), "--size", "64", "--min-tissue", "1.0")
    assert main(["tile", str(slides), *flags]) == 0
    told = capsys.readouterr().out
    assert "a.tif: 16 tiles of 64 x 64 pixels, 1 times those of level 0, 24.8% tissue" in told
    names = {p.name for p in out.iterdir()}
    assert names == {"a.h5", "a.png", "b.h5", "b.png", "tile.yaml", ".lock", *RUN}
    coords = read_coords(out / "a.h5")
    assert len(coords.coords) == 16
    assert (coords.coords.min(), coords.coords.max()) == (192, 384)
    with Image.open(out / "a.png") as picture:
        assert max(picture.size) > 800
    assert yaml.safe_load((out / "tile.yaml").read_text())["mpp"] == 0.5
    stamps = {p.name: p.stat().st_mtime_ns for p in out.iterdir()}
    assert main(["tile", str(slides), *flags]) == 0
    assert "2 of 2 slides are finished" in capsys.readouterr().out
    assert {p.name: p.stat().st_mtime_ns for p in out.iterdir()} == stamps
    assert main(["tile", str(slides), *flags[:-1], "0.5"]) == 1
    assert (
        "holds results of other settings: min_tissue. Give another --out" in capsys.readouterr().err
    )


def test_one_bad_slide_never_ends_a_run(slides, tmp_path, capsys):
    (slides / "broken.svs").write_bytes((DATA / "broken_not_a_tiff.svs").read_bytes())
    (slides / "unknown.tif").write_bytes(
        slide(tmp_path / "u.tif", resolutionunit="NONE").read_bytes()
    )
    out = tmp_path / "out"
    flags = ["--out", str(out), "--size", "64"]
    assert main(["tile", str(slides), *flags]) == 3
    told = capsys.readouterr().err
    assert f"failed: {slides / 'broken.svs'}: cannot be read as TIFF" in told
    assert f"2 of 4 slides failed, see {out / 'failed.csv'}" in told
    assert [Path(row["slide"]).name for row in failures(out)] == ["broken.svs", "unknown.tif"]
    assert (out / "b.h5").exists()
    assert main(["tile", str(slides), *flags, "--strict"]) == 1
    assert "tfbig tile: " in capsys.readouterr().err
    (slides / "broken.svs").unlink()
    table = tmp_path / "mpp.csv"
    table.write_text("wsi,mpp\nunknown,0.4\n")
    assert main(["tile", str(slides), *flags, "--mpp-of", str(table)]) == 0
    assert "2 of 3 slides are finished" in capsys.readouterr().out
    assert read_coords(out / "unknown.h5").step == 1.25
    assert not (out / "failed.csv").exists()


@pytest.mark.skipif(sys.platform == "darwin", reason="its file names are text")
def test_a_name_that_is_no_text_never_ends_a_run(slides, tmp_path, capsys):
    shutil.copy(slides / "a.tif", os.fsencode(slides) + b"/bad\xff.tif")
    assert main(["tile", str(slides), "--out", str(tmp_path / "out"), "--size", "64"]) == 3
    (row,) = failures(tmp_path / "out")
    assert row["slide"].endswith("bad\\udcff.tif")
    assert "its name is not UTF-8" in row["reason"]
    assert (tmp_path / "out" / "a.h5").exists()
    assert "bad\\udcff.tif: its name" in capsys.readouterr().err


def test_a_run_that_has_no_more_failures_has_no_list_of_them(slides, tmp_path):
    bad = slides / "c.tif"
    bad.write_bytes(b"no slide")
    flags = ["tile", str(slides), "--out", str(tmp_path / "out"), "--size", "64"]
    assert main(flags) == 3
    slide(bad)
    assert main(flags) == 0
    assert not (tmp_path / "out" / "failed.csv").exists()


def test_a_dry_run_writes_nothing(slides, tmp_path, capsys):
    assert main(["tile", str(slides), "--out", str(tmp_path / "out"), "--dry-run"]) == 0
    assert "would be tiled at (640, 640, 3)" in capsys.readouterr().out
    assert not (tmp_path / "out").exists()


def test_flags_of_a_file(slides, tmp_path, capsys):
    (tmp_path / "c.yaml").write_text("size: 128\nmagnification: 10\n")
    flags = [
        "--config",
        str(tmp_path / "c.yaml"),
        "--out",
        str(tmp_path / "out"),
        "--min_tissue=0.1",
    ]
    assert main(["tile", str(slides / "a.tif"), *flags, "--tissue", "none"]) == 0
    coords = read_coords(tmp_path / "out" / "a.h5")
    assert (coords.size, coords.step, len(coords.coords)) == (128, 2.0, 9)
    with h5py.File(tmp_path / "out" / "a.h5") as file:
        assert file["coords"].attrs["target_magnification"] == pytest.approx(10)
    again = ["--config", str(tmp_path / "out" / "tile.yaml"), "--out", str(tmp_path / "again")]
    assert main(["tile", str(slides / "a.tif"), *again]) == 0
    assert len(read_coords(tmp_path / "again" / "a.h5").coords) == 9


@pytest.mark.parametrize(
    ("flags", "count"),
    [
        (("--tissue", "grey"), 16),
        (("--tissue", "grey-tiles"), 16),
        (("--tissue", "none"), 64),
        (("--tissue", "none", "--max-pen", "0.5"), 64),
        (("--tissue", "none", "--min-sharpness", "1"), 48),
    ],
)
def test_what_decides_which_tiles_stay(tmp_path, flags, count):
    slide(tmp_path / "a.tif")
    out = tmp_path / "out"
    own = ("--size", "80", "--min-tissue", "0.9", "--out", str(out))
    assert main(["tile", str(tmp_path / "a.tif"), *own, *flags]) == 0
    assert len(read_coords(out / "a.h5").coords) == count


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--mpp", "1", "--level", "0"), "give one of --mpp, --magnification, --level"),
        (("--size", "64", "--overlap", "64"), "--overlap 64: expected less than --size 64"),
        (("--mpp-of", "none.csv"), "none.csv: cannot be read as a CSV file"),
    ],
)
def test_flags_that_do_not_go_together(slides, tmp_path, capsys, flags, message):
    assert main(["tile", str(slides), "--out", str(tmp_path / "out"), *flags]) == 1
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    "flags",
    [("--size", "0"), ("--min-tissue", "2"), ("--mpp", "-1"), ("--tissue", "all"), ("--siz", "5")],
)
def test_wrong_flags(slides, tmp_path, flags):
    with pytest.raises(SystemExit) as ended:
        main(["tile", str(slides), "--out", str(tmp_path / "out"), *flags])
    assert ended.value.code == 2


def test_slides_that_cannot_be_told_apart(slides, tmp_path):
    slide(slides / "b.tif")
    with pytest.raises(SourceError, match="would have results of one name, 'b'"):
        slide_batch.found([slides])
    (tmp_path / "none").mkdir()
    with pytest.raises(SourceError, match=r"none: holds no slides \(\.bif, "):
        slide_batch.found([tmp_path / "none"])
    assert slide_batch.found([slides / "a.tif", slides / "a.tif"]) == [slides / "a.tif"]


def test_no_memory_for_a_slide_is_a_slide_that_fails(slides, tmp_path, capsys, monkeypatch):
    tiled = tile._tile

    def work(path, slide, settings):
        if path.name == "a.tif":
            raise tf.errors.ResourceExhaustedError(None, None, "out of memory")
        return tiled(path, slide, settings)

    monkeypatch.setattr(tile, "_tile", work)
    assert main(["tile", str(slides), "--out", str(tmp_path / "out"), "--size", "64"]) == 3
    assert f"failed: {slides / 'a.tif'}: out of memory" in capsys.readouterr().err
    assert (tmp_path / "out" / "b.h5").exists()


def test_stopped_by_hand(slides, tmp_path, capsys, monkeypatch):
    tiled = tile._tile

    def stop(*given):
        signals.request(signal.SIGTERM)
        return tiled(*given)

    monkeypatch.setattr(tile, "_tile", stop)
    command = ["tile", str(slides), "--out", str(tmp_path / "out"), "--size", "64"]
    assert main([*command, "--min-sharpness", "1"]) == 143  # in the first slide, which is read
    assert not (tmp_path / "out" / "a.h5").exists()
    assert "tfbig tile: stopped by SIGTERM; what is finished stays" in capsys.readouterr().err
    assert main([*command, "--out", str(tmp_path / "other")]) == 143  # after it
    assert [p.name for p in (tmp_path / "other").glob("*.h5")] == ["a.h5"]
    monkeypatch.undo()
    assert main([*command, "--out", str(tmp_path / "other")]) == 0
    assert (tmp_path / "other" / "b.h5").exists()


def test_the_doctor(capsys, monkeypatch):
    assert main(["doctor"]) == 0
    told = capsys.readouterr().out
    assert (
        "accelerators: " in told and "reads NDPI, MRXS, SCN, BIF, Philips, CZI, DICOM: yes" in told
    )
    monkeypatch.setattr(openslide, "openslide", None)
    version = doctor._version
    monkeypatch.setattr(
        doctor, "_version", lambda n: None if n in ("openslide-bin", "zarr") else version(n)
    )
    assert main(["doctor", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["missing"] == {"openslide-bin": "pip install openslide-bin"}
    assert found["optional"] == {"zarr": "pip install 'tfbig[zarr]'"}
    assert found["readers"]["openslide"] is False
    assert main(["doctor"]) == 1
    assert "openslide-bin is missing: pip install openslide-bin" in capsys.readouterr().out


def test_no_command(capsys):
    with pytest.raises(SystemExit) as ended:
        main([])
    assert ended.value.code == 2
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("tfbig 0.1")


def tables(folder):
    """What the tables of a folder hold, in any order."""
    found = {}
    for name in ("failed.csv", "predictions.csv"):
        if (folder / name).exists():
            found[name] = sorted((folder / name).read_text().splitlines())
    return found


@pytest.fixture
def many(tmp_path):
    """Ten slides, of which two are none."""
    folder = tmp_path / "many"
    folder.mkdir()
    for number in range(10):
        path = folder / f"{number}.tif"
        if number in (3, 8):
            path.write_bytes(b"no slide")
        else:
            tifffile.imwrite(path, picture(number), photometric="rgb", tile=(64, 64))
    return folder


def picture(seed):
    image = np.full((128, 192, 3), 240, np.uint8)
    image[20:100, 30:150] = np.random.default_rng(seed).integers(60, 180, (80, 120, 3))
    return image


TILE = ["--size", "64", "--level", "0"]


def test_shards_share_a_folder_and_merge(many, tmp_path):
    whole, out = tmp_path / "whole", tmp_path / "out"
    assert main(["tile", str(many), "--out", str(whole), *TILE]) == 3
    codes = [
        main(["tile", str(many), "--out", str(out), *TILE, "--shard", f"{i}/4"]) for i in range(4)
    ]
    assert codes == [3, 0, 0, 3]  # of each, whether a slide of its own failed
    assert tables(out) == tables(whole)
    names = [{p.name for p in folder.rglob("*") if p.suffix == ".h5"} for folder in (out, whole)]
    assert names[0] == names[1]
    assert len(names[0]) == 8


def test_what_is_no_shard_is_refused(many, tmp_path, capsys):
    for text in ("8/8", "1", "1/-3", "a/b"):
        with pytest.raises(SystemExit):
            main(["tile", str(many), "--out", str(tmp_path / "out"), "--shard", text])
        assert "is no I/N with I from 0 to N - 1" in capsys.readouterr().err


@pytest.mark.slow
def test_shards_that_run_at_once_with_one_killed_and_resumed(many, tmp_path):
    """Real processes; rows of tables that several write to are all there."""
    whole, out = tmp_path / "whole", tmp_path / "out"
    assert main(["tile", str(many), "--out", str(whole), *TILE]) == 3
    code = "import sys; from tfbig.cli.main import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, "tile", str(many), "--out", str(out), *TILE]

    def start(shard):
        return subprocess.Popen([*command, "--shard", shard], cwd=ROOT, stderr=subprocess.DEVNULL)

    shards = [start("0/2"), start("1/2")]
    while not list(out.glob("*.h5")):
        time.sleep(0.01)
    shards[0].kill()
    assert shards[0].wait() == -9
    assert shards[1].wait() == 3
    with start("0/2") as again:
        assert again.wait() == 3
    assert tables(out) == tables(whole)
    assert len(list(out.glob("*.h5"))) == 8


@pytest.mark.slow
def test_slides_are_tasks_of_dask(many, tmp_path, capsys):
    whole, out = tmp_path / "whole", tmp_path / "out"
    assert main(["tile", str(many), "--out", str(whole), *TILE]) == 3
    assert main(["tile", str(many), "--out", str(out), *TILE, "--dask", "local"]) == 3
    assert tables(out) == tables(whole)
    assert len(list(out.glob("*.h5"))) == 8
    assert main(["tile", str(many), "--out", str(out), *TILE, "--dask", "tcp://localhost:1"]) == 1
    assert "no scheduler answers" in capsys.readouterr().err


def test_without_dask_the_line_that_installs_it(many, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("tfbig.cli.dask.find_spec", lambda name: None)
    assert main(["tile", str(many), "--out", str(tmp_path / "out"), "--dask", "local"]) == 1
    assert "pip install 'tfbig[dask]'" in capsys.readouterr().err
