"""No command replaces a file of the user: folders that hold one are refused before anything is computed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from PIL import Image

import train
from tfbig.cli.main import main
from tfbig.system import output_folder


def picture(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((40, 40, 3), 90, "uint8")).save(path)


def network(path: Path) -> Path:
    image = keras.Input((None, None, 3))
    keras.Model(image, keras.layers.Conv2D(1, 1, activation="sigmoid")(image)).save(path)
    return path


def contents(folder: Path) -> dict[str, Any]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def assert_refused(code: int, said: Any, name: str) -> None:
    assert code == 2
    assert len(said.err.splitlines()) == 1
    assert name in said.err and "--out" in said.err
    assert said.out == ""


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A folder of the user, with slides, outlines, tables and settings."""
    folder = tmp_path / "own"
    picture(folder / "s0.png")
    picture(folder / "s1.png")
    (folder / "s0.geojson").write_text("{}")
    (folder / "slides.csv").write_text("slide_id,label,age,consent\ns0,a,70,yes\ns1,b,60,no\n")
    (folder / "settings.yaml").write_text("epochs: 3\n")
    (folder / "report.html").write_text("mine")
    return folder


COMMANDS = {
    "tile": "tile OWN",
    "tile of a file": "tile OWN/s0.png",
    "tile of others": "tile OTHER",
    "features": "features OTHER --encoder resnet18",
    "tile with outlines": "tile OTHER --tissue OWN",
    "predict": "predict MODEL OWN",
    "predict others": "predict MODEL OTHER",
    "train": "train --data OWN",
    "train on others": "train --data OTHER --task images",
    "dataset": "dataset camelyon16 OTHER",
}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("out", ["own", "own/"])
def test_folders_of_the_user_are_refused(
    command: str, out: str, own: Path, tmp_path: Path, capsys: Any
) -> None:
    picture(tmp_path / "other" / "a.png")
    model = network(tmp_path / "own.keras")
    (tmp_path / "other" / "images.csv").write_text("image,label\na.png,a\n")
    places = {"OWN": own, "OTHER": tmp_path / "other", "MODEL": model}
    words = COMMANDS[command].split()
    for name, place in places.items():
        words = [word.replace(name, str(place)) for word in words]
    before = contents(tmp_path)
    code = main([*words, "--out", f"{tmp_path}/{out}"])
    assert_refused(code, capsys.readouterr(), "own")
    assert contents(tmp_path) == before


def test_results_between_the_inputs(tmp_path: Path, capsys: Any) -> None:
    """Also where tfbig wrote them: tiles of tiles would replace those."""
    out = tmp_path / "tiles"
    picture(tmp_path / "slides" / "s0.png")
    flags = ["--level", "0", "--tile", "16", "--tissue", "none", "--quiet"]
    assert main(["tile", str(tmp_path / "slides"), "--out", str(out), *flags]) == 0
    capsys.readouterr()
    before = contents(out)
    for words in (["tile", str(out)], ["tile", str(out / "s0.png")]):
        code = main([*words, "--out", str(out), *flags])
        assert_refused(code, capsys.readouterr(), "read by this command")
    slides = [str(tmp_path / "slides"), "--encoder", "resnet18", "--coords", str(out)]
    code = main(["features", *slides, "--out", str(out)])
    assert_refused(code, capsys.readouterr(), "read by this command")
    assert contents(out) == before


def test_file_that_is_added_to_results(tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "tiles"
    picture(tmp_path / "slides" / "s0.png")
    words = ["tile", str(tmp_path / "slides"), "--out", str(out), "--level", "0", "--tile", "16"]
    words += ["--tissue", "none", "--quiet"]
    assert main(words) == 0
    assert main(words) == 0  # what is finished is not made again
    (out / "s1.png").write_text("mine")
    picture(tmp_path / "slides" / "s1.png")
    capsys.readouterr()
    assert_refused(main(words), capsys.readouterr(), "s1.png")
    (out / "s1.png").unlink()
    assert main(words) == 0
    assert (out / "s1.h5").exists()


def test_report_of_a_folder_of_the_user(own: Path, capsys: Any) -> None:
    before = contents(own)
    assert main(["report", str(own)]) == 1
    assert "is not a folder that tfbig wrote" in capsys.readouterr().err
    assert contents(own) == before


def test_report_of_a_copy_without_the_record(mil_run: Any, tmp_path: Path, capsys: Any) -> None:
    copy = Path(shutil.copytree(mil_run.folder, tmp_path / "copy"))
    assert main(["report", str(copy)]) == 0
    (copy / output_folder.RECORD).unlink()
    (copy / "report.html").write_text("mine")
    assert main(["report", str(copy)]) == 1
    assert "Move it elsewhere" in capsys.readouterr().err
    assert (copy / "report.html").read_text() == "mine"
    (copy / "report.html").unlink()
    assert main(["report", str(copy)]) == 0


@pytest.mark.parametrize(("command", "code"), [("predict", 2), ("evaluate", 1)])
def test_run_folders_are_not_changed(
    command: str, code: int, mil_run: Any, tmp_path: Path, capsys: Any
) -> None:
    run = Path(shutil.copytree(mil_run.folder, tmp_path / "run"))
    picture(tmp_path / "slides" / "s0.png")
    before = contents(run)
    slides = [str(tmp_path / "slides")] if command == "predict" else []
    assert main([command, str(run), *slides, "--out", str(run)]) == code
    assert str(run) in capsys.readouterr().err
    assert contents(run) == before


def test_resumed_run_with_a_file_of_the_user(mil_run: Any, tmp_path: Path, capsys: Any) -> None:
    run = Path(shutil.copytree(mil_run.folder, tmp_path / "run"))
    (run / "notes.txt").write_text("mine")
    before = contents(run)
    assert train.main(["--out", str(run), "--resume"]) == 2
    assert "holds notes.txt, which tfbig did not write" in capsys.readouterr().err
    assert contents(run) == before


def test_resumed_run_without_a_record(mil_run: Any, tmp_path: Path, capsys: Any) -> None:
    """A run of an older version, or a copy without hidden files, is not touched, and the advice helps."""
    run = Path(shutil.copytree(mil_run.folder, tmp_path / "a run"))
    (run / output_folder.RECORD).unlink()
    before = contents(run)
    assert train.main(["--out", str(run), "--resume"]) == 1
    error = capsys.readouterr().err.strip()
    assert f"{run}: is a run folder without .tfbig-files" in error and "expected one" in error
    assert contents(run) == before
    subprocess.run(error.partition("are of the run: ")[2], shell=True, check=True)
    assert train.main(["--out", str(run), "--resume"]) == 0
    assert "all epochs are already done" in capsys.readouterr().out
    (run / "notes.txt").write_text("mine")
    assert train.main(["--out", str(run), "--resume"]) != 0
    assert "holds notes.txt, which tfbig did not write" in capsys.readouterr().err
