"""Commands over many slides: failures, finished slides, shards, signals."""

import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import h5py
import pytest
import tensorflow as tf
from cli_runs import TILE, failures, tables, write_square
from samples import FILES, ROOT

from tfbig import SourceError
from tfbig.cli import slide_batch
from tfbig.cli.commands import tile
from tfbig.cli.input_kinds import VOLUMES
from tfbig.cli.main import main
from tfbig.cli.paths import FlagError
from tfbig.cli.settings.slide_settings import PredictSettings, TileSettings
from tfbig.results import run_folder
from tfbig.sources import read_coords
from tfbig.system import signals


def test_bad_slides_do_not_stop_the_run(slides, tmp_path, capsys):
    (slides / "broken.svs").write_bytes((FILES / "broken_not_a_tiff.svs").read_bytes())
    (slides / "unknown.tif").write_bytes(
        write_square(tmp_path / "u.tif", resolutionunit="NONE").read_bytes()
    )
    out = tmp_path / "out"
    flags = ["--out", str(out), "--tile", "64"]
    assert main(["tile", str(slides), *flags]) == 3
    errors = capsys.readouterr().err
    assert f"failed: {slides / 'broken.svs'}: cannot be read as TIFF" in errors
    assert f"2 of 4 slides failed, see {out / 'failed.csv'}" in errors
    assert [Path(row["item"]).name for row in failures(out)] == ["broken.svs", "unknown.tif"]
    assert (out / "b.h5").exists()
    assert main(["tile", str(slides), *flags, "--strict"]) == 1
    assert "tfbig tile: " in capsys.readouterr().err
    (slides / "broken.svs").unlink()
    table = tmp_path / "mpp.csv"
    table.write_text("wsi,mpp\nunknown,0.4\n")
    assert main(["tile", str(slides), *flags, "--mpp-of", str(table)]) == 0
    assert "2 of 3 slides are already finished" in capsys.readouterr().out
    assert read_coords(out / "unknown.h5").step == 1.25
    assert not (out / "failed.csv").exists()


@pytest.mark.skipif(sys.platform == "darwin", reason="its file names are text")
def test_file_name_that_is_not_utf8(slides, tmp_path, capsys):
    (slides / "b.ome.tif").unlink()
    shutil.copy(slides / "a.tif", os.fsencode(slides) + b"/bad\xff.tif")
    assert main(["tile", str(slides), "--out", str(tmp_path / "out"), "--tile", "64"]) == 3
    (row,) = failures(tmp_path / "out")
    assert row["item"].endswith("bad\\udcff.tif")
    assert "the file name is not valid UTF-8" in row["reason"]
    assert (tmp_path / "out" / "a.h5").exists()
    assert "bad\\udcff.tif: the file name" in capsys.readouterr().err


def test_failures_of_slides_that_are_not_retried_stay(slides, tmp_path, capsys, monkeypatch):
    """They go when the slide is done, is gone, or is read by another path."""
    monkeypatch.chdir(slides)
    out = tmp_path / "out"

    def failed(*names, size="64"):
        main(["tile", *names, "--out", str(out), "--tile", size])
        return {row["item"] for row in failures(out)} if (out / "failed.csv").exists() else set()

    for name in ("c.tif", "d.tif"):
        Path(name).write_bytes(b"no slide")
    assert failed("a.tif", "c.tif", "d.tif") == {"c.tif", "d.tif"}
    assert failed("a.tif") == {"c.tif", "d.tif"}
    assert "1 of 1 slides are already finished" in capsys.readouterr().out
    assert failed("c.tif", size="128") == {"c.tif", "d.tif"}
    assert "holds results of other settings: tile" in capsys.readouterr().err
    assert failed(str(slides / "c.tif")) == {str(slides / "c.tif"), "d.tif"}
    Path("d.tif").unlink()
    write_square(Path("c.tif"))
    assert failed("a.tif") == {str(slides / "c.tif")}
    assert failed("c.tif") == set()
    run_folder.save_failure(out, "a.tif", "another process stopped")
    assert failed("a.tif") == set()


@pytest.mark.slow  # test_bad_slides_do_not_stop_the_run has a fast case
def test_failure_list_is_removed(slides, tmp_path):
    bad = slides / "c.tif"
    bad.write_bytes(b"no slide")
    flags = ["tile", str(slides), "--out", str(tmp_path / "out"), "--tile", "64"]
    assert main(flags) == 3
    write_square(bad)
    assert main(flags) == 0
    assert not (tmp_path / "out" / "failed.csv").exists()


def test_dry_run_writes_nothing(slides, tmp_path, capsys):
    assert main(["tile", str(slides), "--out", str(tmp_path / "out"), "--dry-run"]) == 0
    assert "would be tiled at (640, 640, 3)" in capsys.readouterr().out
    assert not (tmp_path / "out").exists()


def test_config_file(slides, tmp_path, capsys):
    (tmp_path / "c.yaml").write_text("tile: 128\nmagnification: 10\n")
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


def test_equal_names(slides, tmp_path):
    write_square(slides / "b.tif")
    with pytest.raises(SourceError, match="results of both would be written to 'b'"):
        slide_batch.list_slides([slides])
    (tmp_path / "none").mkdir()
    with pytest.raises(SourceError, match=r"none: holds no slides \(\.bif, "):
        slide_batch.list_slides([tmp_path / "none"])
    assert slide_batch.list_slides([slides / "a.tif", slides / "a.tif"]) == [slides / "a.tif"]


def test_masks_beside_slides(slides, tmp_path, capsys):
    """In a folder they are left out; a file that is named is not."""
    before = slide_batch.list_slides([slides])
    assert capsys.readouterr().out == ""
    mask = write_square(slides / "a_mask.tif")
    write_square(slides / "other_mask.tif")
    assert slide_batch.list_slides([slides]) == sorted([*before, slides / "other_mask.tif"])
    assert capsys.readouterr().out == f"{slides}: masks are left out, such as a_mask.tif\n"
    assert slide_batch.list_slides([mask]) == [mask]
    for name in ("c_0000.nii.gz", "c_0001.nii.gz", "c_seg.nii.gz", "d.nrrd", "d_mask.nii"):
        (tmp_path / name).touch()
    found = slide_batch.list_slides([tmp_path], VOLUMES)
    assert [path.name for path in found] == ["c_0000.nii.gz", "d.nrrd"]


def test_tables_of_slides(slides, tmp_path, capsys):
    """Paths are relative to the table; without one, slides are found by name beside it."""
    table = slides / "slides.csv"
    table.write_text("slide_id,path,label\nfirst,a.tif,x\nb,,y\nnone,,x\n")
    paths = slide_batch.list_slides([table])
    assert paths == [slides / "a.tif", slides / "b.ome.tif", slides / "none"]
    out = tmp_path / "out"
    assert main(["tile", str(table), "--out", str(out), "--tile", "64"]) == 3
    assert (out / "a.h5").exists() and (out / "b.h5").exists()
    assert [row["item"] for row in failures(out)] == [str(slides / "none")]
    table.write_text("slide,label\na,x\n")
    assert main(["tile", str(table), "--out", str(out), "--tile", "64"]) == 1
    assert f"{table}: line 1: has no column 'slide_id'" in capsys.readouterr().err


def test_the_same_reason_is_printed_once(slides, tmp_path, capsys):
    """It is saved for each slide."""
    names = ["a.tif", "b.tif", "c.tif"]
    for name in names:
        write_square(slides / name, resolution=(1, 1), resolutionunit="NONE")
    command = ["tile", *(str(slides / name) for name in names), "--out", str(tmp_path / "out")]
    assert main(command) == 3
    first, *others = capsys.readouterr().err.splitlines()
    assert first.startswith(f"failed: {slides / 'a.tif'}: does not specify its pixel size")
    assert [line.partition("tif: ")[2] for line in others[:2]] == [
        f"the same as {slides / 'a.tif'}"
    ] * 2
    reasons = {row["reason"] for row in failures(tmp_path / "out")}
    assert len(reasons) == 1 and "the same" not in reasons.pop()


@pytest.mark.parametrize(
    "error", [KeyError("no such\nkey"), RecursionError(), ZeroDivisionError("x")]
)
def test_any_exception_of_a_slide_is_its_failure(slides, tmp_path, monkeypatch, capsys, error):
    """The others are done, and there are `failed.csv` and the report."""

    def work(path, slide, settings, selection):
        if path.stem == first:
            raise error
        return "done"

    out = tmp_path / "out"
    first = min(path.stem for path in slides.iterdir())
    monkeypatch.setattr(tile, "_tile", work)
    assert main(["tile", str(slides), "--out", str(out), "--quiet"]) == 3
    (row,) = failures(out)
    assert row["reason"].startswith(type(error).__name__)
    assert len(row["reason"].splitlines()) == 1
    assert (out / "report.html").exists()
    assert "done" in capsys.readouterr().out
    with pytest.raises(type(error)):
        main(["tile", str(slides), "--out", str(out), "--quiet", "--strict"])


def test_preparation_that_fails_ends_the_command(slides, tmp_path):
    """It is not called if there is nothing to do."""

    def make_work(settings):
        def prepare():
            raise SourceError("no weights")

        folder = Path(settings.out)
        return slide_batch.Work(
            "tile",
            settings,
            lambda *_: "",
            lambda path: (folder / "done").exists(),
            prepare=prepare,
        )

    settings = TileSettings(slides=(str(slides),), out=str(tmp_path / "out"))
    with pytest.raises(SourceError, match="no weights"):
        slide_batch.run(settings, make_work)
    run_folder.write_text(tmp_path / "out" / "done", "")
    assert slide_batch.run(settings, make_work) == 0


def test_out_of_memory_fails_one_slide(slides, tmp_path, capsys, monkeypatch):
    tiled = tile._tile

    def work(path, slide, settings, selection):
        if path.name == "a.tif":
            raise tf.errors.ResourceExhaustedError(None, None, "out of memory")
        return tiled(path, slide, settings, selection)

    monkeypatch.setattr(tile, "_tile", work)
    assert main(["tile", str(slides), "--out", str(tmp_path / "out"), "--tile", "64"]) == 3
    assert f"failed: {slides / 'a.tif'}: out of memory" in capsys.readouterr().err
    assert (tmp_path / "out" / "b.h5").exists()


def test_signal(slides, tmp_path, capsys, monkeypatch):
    tiled = tile._tile

    def stop_in(*arguments):
        signals.request(signal.SIGTERM)
        return tiled(*arguments)

    def stop_after(*arguments):
        line = tiled(*arguments)
        signals.request(signal.SIGTERM)
        return line

    command = ["tile", str(slides), "--out", str(tmp_path / "out"), "--tile", "64"]
    monkeypatch.setattr(tile, "_tile", stop_in)
    assert main([*command, "--min-sharpness", "1"]) == 143
    assert not (tmp_path / "out" / "a.h5").exists()
    assert "tfbig tile: stopped by SIGTERM; finished slides are kept" in capsys.readouterr().err
    monkeypatch.setattr(tile, "_tile", stop_after)
    assert main([*command, "--out", str(tmp_path / "other")]) == 143
    assert [p.name for p in (tmp_path / "other").glob("*.h5")] == ["a.h5"]
    monkeypatch.undo()
    assert main([*command, "--out", str(tmp_path / "other")]) == 0
    assert (tmp_path / "other" / "b.h5").exists()


@pytest.mark.slow
def test_shards_share_a_folder(many, whole, tmp_path):
    out = tmp_path / "out"
    codes = [
        main(["tile", str(many), "--out", str(out), *TILE, "--shard", f"{i}/3"]) for i in range(3)
    ]
    assert codes == [0, 0, 3]  # 3 if one of its own slides failed
    assert tables(out) == tables(whole)
    names = [{p.name for p in folder.rglob("*") if p.suffix == ".h5"} for folder in (out, whole)]
    assert names[0] == names[1]
    assert len(names[0]) == 4


def test_shards_that_start_at_once(slides, tmp_path, monkeypatch):
    """While one saves the settings of the folder, no other process does: their temporary files have one name."""
    out, codes, write = tmp_path / "out", [], run_folder.write_yaml
    program = (
        "import fcntl, sys; fcntl.lockf(open(sys.argv[1], 'w'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
    )

    def write_yaml(*arguments):
        command = [sys.executable, "-c", program, str(out / ".lock")]
        codes.append(subprocess.run(command, check=False, capture_output=True).returncode)
        write(*arguments)

    monkeypatch.setattr(run_folder, "write_yaml", write_yaml)
    assert main(["tile", str(slides), "--out", str(out), "--tile", "64"]) == 0
    assert codes == [1]  # the lock is held


def test_invalid_shard(many, tmp_path, capsys):
    for text in ("8/8", "1", "1/-3", "a/b"):
        assert main(["tile", str(many), "--out", str(tmp_path / "out"), "--shard", text]) == 2
        assert "is not I/N with I from 0 to N - 1" in capsys.readouterr().err


@pytest.mark.slow
def test_killed_shard(many, whole, tmp_path):
    """Rows of tables that several processes write are complete."""
    out = tmp_path / "out"
    command = [sys.executable, "-m", "tfbig_command", "tile", str(many), "--out", str(out), *TILE]

    def start(shard):
        return subprocess.Popen([*command, "--shard", shard], cwd=ROOT, stderr=subprocess.DEVNULL)

    shards = [start("0/2"), start("1/2")]
    end = time.monotonic() + 300
    while not list(out.glob("*.h5")):
        assert time.monotonic() < end
        time.sleep(0.01)
    shards[0].kill()
    assert shards[0].wait() == -9
    assert shards[1].wait() == 3
    with start("0/2") as again:
        assert again.wait() == 3
    assert tables(out) == tables(whole)
    assert len(list(out.glob("*.h5"))) == 4


def test_resolution_that_is_not_used():
    settings = PredictSettings(model="m", slides=("a",), out="out")
    slide_batch.refuse_resolution(settings, "no.")
    with pytest.raises(
        FlagError, match=r"--mpp 0\.5: is not used: features are as they are\. Remove it"
    ):
        slide_batch.refuse_resolution(replace(settings, mpp=0.5), "features are as they are.")
