"""Paths that do not exist or are of the wrong kind: exit code 2, before anything is read or written."""

import pytest
from cli_runs import MIL, WHOLE_SLIDES, write_square

import train
from tfbig.cli import paths
from tfbig.cli.main import main
from tfbig.cli.tasks import segmentation

BAGS = ["--task", "mil", "--bags", "slides"]
FLAGS = [
    (["--task", "segmentation"], "--data", "folder"),
    (BAGS, "--data", "file or folder"),
    (BAGS, "--slides", "folder"),
    (BAGS, "--coords", "folder"),
    (BAGS, "--splits", "file"),
    (BAGS, "--mpp-of", "file"),
    (MIL, "--encoder-weights", "file or folder"),
    (MIL, "--test-only", "folder"),
    (MIL, "--beside", "folder"),
    (WHOLE_SLIDES, "--data", "file or folder"),
    (WHOLE_SLIDES, "--slides", "folder"),
    (WHOLE_SLIDES, "--splits", "file"),
    (WHOLE_SLIDES, "--mpp-of", "file"),
    (WHOLE_SLIDES, "--encoder-weights", "file or folder"),
]
"""Path flags of train, with the task that has them."""


def ends_with_2(call):
    """Return whether a command ends with exit code 2, returned or raised."""
    try:
        return call() == 2
    except SystemExit as ended:
        return ended.code == 2


@pytest.mark.parametrize(("task", "flag", "kind"), FLAGS)
def test_flags_of_train(task, flag, kind, tmp_path, capsys):
    out = ["--out", str(tmp_path / "out")]
    assert train.main([*task, flag, str(tmp_path / "nope"), *out]) == 2
    assert f"{flag} {tmp_path / 'nope'}: no such {kind}" in capsys.readouterr().err
    wrong = tmp_path / "wrong"
    if kind == "file":
        wrong.mkdir()
    else:
        wrong.write_text("text")
    if kind != "file or folder":
        (tmp_path / "table.csv").write_text("slide_id,label")
        data = [] if flag == "--data" else ["--data", str(tmp_path / "table.csv")]
        if "segmentation" in task or task == MIL:
            data = []  # they have data of their own
        assert train.main([*task, flag, str(wrong), *data, *out]) == 2
        expected = (
            "is a folder; expected a file" if kind == "file" else "is a file; expected a folder"
        )
        assert f"{flag} {wrong}: {expected}" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


COMMANDS = [
    ("tile {NOPE} --out {OUT}", "no such file or folder"),
    ("tile {SLIDE} {NOPE} --out {OUT}", "no such file or folder"),
    ("tile {SLIDE} --out {OUT} --mpp-of {NOPE}", "--mpp-of {NOPE}: no such file"),
    (
        "tile {SLIDE} --out {OUT} --mpp-of {FOLDER}",
        "--mpp-of {FOLDER}: is a folder; expected a file",
    ),
    ("tile {SLIDE} --out {OUT} --config {NOPE}", "{NOPE}: no such file"),
    ("tile {SLIDE} --out {OUT} --config {FOLDER}", "{FOLDER}: is not a file; expected one of YAML"),
    ("predict {NOPE} {SLIDE} --out {OUT}", "{NOPE}: no such file or folder"),
    ("predict {FOLDER} {NOPE} --out {OUT}", "{NOPE}: no such file or folder"),
    ("predict {FOLDER} {SLIDE} --out {OUT} --coords {NOPE}", "--coords {NOPE}: no such folder"),
    (
        "predict {FOLDER} {SLIDE} --out {OUT} --coords {SLIDE}",
        "--coords {SLIDE}: is a file; expected a folder",
    ),
    ("report {NOPE}", "{NOPE}: no such folder"),
    ("report {SLIDE}", "{SLIDE}: is a file; expected a folder"),
    ("dataset panda {NOPE}", "{NOPE}: no such folder"),
    ("dataset panda {SLIDE}", "{SLIDE}: is a file; expected a folder"),
    ("evaluate {NOPE}", "{NOPE}: no such folder"),
    ("evaluate {SLIDE}", "{SLIDE}: is a file; expected a folder"),
    ("plan ResNet50 {NOPE}.tif", "{NOPE}.tif: no such file"),
    ("train --config {NOPE}", "{NOPE}: no such file"),
    ("train --config {FOLDER}", "{FOLDER}: is not a file; expected one of YAML"),
]


@pytest.mark.parametrize(("command", "message"), COMMANDS)
def test_commands(command, message, tmp_path, capsys):
    write_square(tmp_path / "slide.tif", side=64)
    (tmp_path / "folder").mkdir()
    before = sorted(tmp_path.rglob("*"))
    places = {"NOPE": "nope", "OUT": "out", "SLIDE": "slide.tif", "FOLDER": "folder"}
    names = {name: str(tmp_path / file) for name, file in places.items()}
    assert ends_with_2(lambda: main(command.format(**names).split()))
    assert message.format(**names) in capsys.readouterr().err
    assert sorted(tmp_path.rglob("*")) == before


OUTS = ["train --task mil", "predict {FOLDER} {SLIDE}", "tile {SLIDE}", "compare {FOLDER}"]


@pytest.mark.parametrize(
    ("out", "message"),
    [
        ("{SLIDE}/a/b", "cannot be created: no folder can be made in {SLIDE} (Not a directory)"),
        ("{LINK}/a", "cannot be created: no folder can be made in {LINK} (No such file or"),
        ("{SLIDE}", "--out {SLIDE}: is a file; expected a folder"),
    ],
)
@pytest.mark.parametrize("command", OUTS)
def test_out(command, out, message, tmp_path, capsys):
    """A folder that nobody can create is refused before anything is computed."""
    write_square(tmp_path / "slide.tif", side=64)
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("nowhere")
    before = sorted(tmp_path.rglob("*"))
    files = {"SLIDE": "slide.tif", "FOLDER": "folder", "LINK": "link"}
    names = {name: str(tmp_path / file) for name, file in files.items()}
    assert main(f"{command} --out {out}".format(**names).split()) == 2
    output = capsys.readouterr()
    assert f"--out {out}: ".format(**names) in output.err
    assert message.format(**names) in output.err
    assert output.out == ""
    assert sorted(tmp_path.rglob("*")) == before


def test_out_that_can_be_created(tmp_path):
    for path in (tmp_path, tmp_path / "a" / "b"):
        paths.check_out(path)
    assert [*tmp_path.iterdir()] == []


@pytest.fixture
def installed(monkeypatch):
    """A default without slides, as after `pip install` outside of a checkout."""
    monkeypatch.setattr(segmentation, "EXAMPLE_DATA", segmentation.EXAMPLE_DATA / "none")


def test_data_is_missing(installed, tmp_path, capsys):
    assert train.main(["--out", str(tmp_path / "out")]) == 2
    assert "--data FOLDER is missing: the folder of your slides, such as --data my_slides" in (
        capsys.readouterr().err
    )
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--crop", "7x7"], "both must be multiples"),
        (["--epochs", "0"], "must be at least 1"),
        (["--wrong"], "unrecognized arguments: --wrong"),
        (["--beside", "/nope"], "--beside /nope: no such folder"),
        (["--devices", "GPU:77"], "--devices 'GPU:77': no such device"),
    ],
)
def test_other_flags_first(installed, flags, message, capsys):
    try:
        assert train.main(flags) in (1, 2)
    except SystemExit as ended:
        assert ended.code == 2
    error = capsys.readouterr().err
    assert message in error
    assert "--data FOLDER is missing" not in error
