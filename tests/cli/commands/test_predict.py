"""`tfbig predict`: finished slides, and models that cannot be used."""

import keras
from cli_runs import predictions, write_rectangle
from keras import layers
from samples import darkness

from tfbig.cli.main import main


def test_finished_and_bad_slides(tmp_path, capsys):
    (tmp_path / "slides").mkdir()
    for name in "ab":
        write_rectangle(tmp_path / "slides" / f"{name}.tif")
    (tmp_path / "slides" / "c.tif").write_bytes(b"no slide")
    darkness(tmp_path / "m.keras", channels=1)
    flags = [str(tmp_path / "m.keras"), str(tmp_path / "slides"), "--out", str(tmp_path / "out")]
    assert main(["predict", *flags, "--dry-run"]) == 3
    assert "would be read at 300 x 420" in capsys.readouterr().out
    assert not (tmp_path / "out").exists()
    for _ in range(2):
        assert main(["predict", *flags]) == 3
    output = capsys.readouterr()
    assert "2 of 3 slides are already finished" in output.out
    assert "c.tif: cannot be read as TIFF" in output.err
    assert [row["slide"] for row in predictions(tmp_path / "out")] == ["a.tif", "b.tif"]
    assert main(["predict", *flags, "--input", "inverted-gray"]) == 1
    assert "holds results of other settings: input" in capsys.readouterr().err


def test_share_of_tissue(tmp_path, capsys):
    assert (
        main(["predict", "m.keras", "a.tif", "--out", str(tmp_path / "out"), "--min-tissue", "1.5"])
        == 2
    )
    assert "--min-tissue: '1.5' must be a share from 0 to 1" in capsys.readouterr().err


def test_errors(tmp_path, capsys):
    write_rectangle(tmp_path / "a.tif")
    image = keras.Input((None, None, 3))
    keras.Model(image, layers.Conv2D(2, 1)(image)[..., None]).save(tmp_path / "m.keras")
    (tmp_path / "torn.keras").write_bytes(b"torn")
    (tmp_path / "none").mkdir()
    darkness(tmp_path / "gray.keras", channels=1)
    for model, flags, message in (
        ("m.keras", (), "expected images [N, H, W, C] to masks [N, H, W, K] or to classes"),
        ("torn.keras", (), "torn.keras: is not a Keras file"),
        ("missing.keras", (), "missing.keras: no such file or folder"),
        ("none", (), "none: is not a run folder of train"),
        ("gray.keras", ("--input", "rgb"), "expects 1 channel, but --input rgb gives 3"),
        ("gray.keras", ("--class-names", "a"), "--class-names: 1 names; expected 2"),
        ("gray.keras", ("--orientation", "stored"), "--orientation stored: is for volumes, and"),
        (
            "gray.keras",
            ("--mpp", "1", "--level", "1"),
            "expected one of --mpp, --magnification, --level",
        ),
    ):
        command = [
            str(tmp_path / model),
            str(tmp_path / "a.tif"),
            "--out",
            str(tmp_path / "out"),
            *flags,
        ]
        is_flag = model == "missing.keras" or {*flags} & {"--orientation", "--mpp", "--class-names"}
        assert main(["predict", *command]) == (2 if is_flag else 1)
        assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
