"""`tfbig predict`: what it writes is what the plain model finds, in files that other programs open."""

import csv
import json

import keras
import numpy as np
import pytest
import shapely
import tifffile
from keras import layers
from PIL import Image
from samples import darkness

from tfbig.cli.main import main
from tfbig.sources import open_slide


def slide(path, shape=(300, 420), **options):
    """Bright, with a dark rectangle of rows 40 to 200 and columns 100 to 330."""
    base = np.random.default_rng(0).integers(236, 246, (*shape, 3)).astype(np.uint8)
    base[40:200, 100:330] -= 140
    known = {"resolution": (20000, 20000), "resolutionunit": "CENTIMETER"} | options  # 0.5 um
    tifffile.imwrite(path, base, photometric="rgb", tile=(64, 64), **known)
    return base


def table(out):
    return list(csv.DictReader((out / "predictions.csv").read_text().splitlines()))


def test_a_mask_is_that_of_the_plain_model(tmp_path, capsys):
    base, out = slide(tmp_path / "a.tif"), tmp_path / "out"
    model = darkness(tmp_path / "m.keras")
    flags = ("--out", str(out), "--classes", "glass", "tissue", "--probabilities", "--quiet")
    assert main(["predict", str(tmp_path / "m.keras"), str(tmp_path / "a.tif"), *flags]) == 0
    assert "a.tif: 300 x 420, " in capsys.readouterr().out
    names = {
        "a.ome.tif",
        "a.geojson",
        "a.png",
        "a_probabilities.ome.tif",
        "predictions.csv",
        "predict.yaml",
        *(".lock", "report.html", "versions.json", "views"),
    }
    assert {p.name for p in out.iterdir()} == names
    padded = np.pad(base, ((0, 20), (0, 28), (0, 0)))  # to multiples of 32
    expected = model.predict(padded[None].astype(np.float32), verbose=0)[0, :300, :420]
    labels = (expected > 0.5).astype(np.uint8)
    assert 0.2 < labels.mean() < 0.4
    found = open_slide(out / "a.ome.tif")
    np.testing.assert_array_equal(found.read((0, 300), (0, 420)), labels)
    assert found.mpp == pytest.approx((0.5, 0.5))
    chances = open_slide(out / "a_probabilities.ome.tif").read((0, 300), (0, 420))
    np.testing.assert_allclose(chances / 255, expected, atol=0.51 / 255)
    features = json.loads((out / "a.geojson").read_text())["features"]
    shapes = [shapely.from_geojson(json.dumps(f["geometry"])) for f in features]
    assert all(shape.is_valid for shape in shapes)
    area = sum(shape.area for shape in shapes)
    assert area == pytest.approx(labels.sum(), rel=0.02)
    assert {f["properties"]["classification"]["name"] for f in features} == {"tissue"}
    (row,) = table(out)
    assert float(row["share_tissue"]) == pytest.approx(labels.mean())
    assert float(row["mm2_tissue"]) == pytest.approx(labels.sum() * 0.25e-6)
    with Image.open(out / "a.png") as picture:
        assert min(picture.size) > 300


def test_classes_and_another_resolution(tmp_path):
    slide(tmp_path / "a.tif")
    model = darkness(tmp_path / "m.keras", outputs=3)
    out = tmp_path / "out"
    flags = ("--out", str(out), "--mpp", "1.0", "--stride", "16")
    assert main(["predict", str(tmp_path / "m.keras"), str(tmp_path / "a.tif"), *flags]) == 0
    found = open_slide(out / "a.ome.tif")
    assert found.shape == (150, 210, 1)
    assert found.mpp == pytest.approx((1.0, 1.0))
    labels = found.read((0, 150), (0, 210))[..., 0]
    small = open_slide(tmp_path / "a.tif").at(mpp=1.0).read(0, 150)
    padded = np.pad(small, ((0, 10), (0, 14), (0, 0)))  # to multiples of 16
    expected = model.predict(padded[None].astype(np.float32), verbose=0)[0, :150, :210].argmax(2)
    np.testing.assert_array_equal(labels, expected)
    assert set(np.unique(labels)) == {0, 1, 2}
    assert list(table(out)[0])[-6:] == ["share_0", "share_1", "share_2", "mm2_0", "mm2_1", "mm2_2"]
    features = json.loads((out / "a.geojson").read_text())["features"]
    bounds = shapely.from_geojson(json.dumps(features[0]["geometry"])).bounds
    assert bounds[2] > 210  # in pixels of level 0


def test_finished_slides_are_skipped_and_bad_ones_named(tmp_path, capsys):
    (tmp_path / "slides").mkdir()
    for name in "ab":
        slide(tmp_path / "slides" / f"{name}.tif")
    (tmp_path / "slides" / "c.tif").write_bytes(b"no slide")
    darkness(tmp_path / "m.keras", channels=1)
    flags = [str(tmp_path / "m.keras"), str(tmp_path / "slides"), "--out", str(tmp_path / "out")]
    assert main(["predict", *flags, "--dry-run"]) == 3
    assert "would be seen at 300 x 420" in capsys.readouterr().out
    assert not (tmp_path / "out").exists()
    for _ in range(2):
        assert main(["predict", *flags]) == 3
    told = capsys.readouterr()
    assert "2 of 3 slides are finished" in told.out
    assert "c.tif: cannot be read as TIFF" in told.err
    assert [row["slide"] for row in table(tmp_path / "out")] == ["a.tif", "b.tif"]
    assert main(["predict", *flags, "--input", "inverted-gray"]) == 1
    assert "holds results of other settings: input" in capsys.readouterr().err


def test_nothing_under_its_name_is_left_of_a_slide_that_fails(tmp_path, monkeypatch):
    slide(tmp_path / "a.tif")
    darkness(tmp_path / "m.keras")

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tifffile.TiffWriter, "write", full)
    flags = [str(tmp_path / "m.keras"), str(tmp_path / "a.tif"), "--out", str(tmp_path / "out")]
    assert main(["predict", *flags]) == 3
    names = {p.name for p in (tmp_path / "out").iterdir()}
    assert "a.ome.tif" not in names and not any(name.startswith(".part") for name in names)
    monkeypatch.undo()
    assert main(["predict", *flags]) == 0
    assert len(table(tmp_path / "out")) == 1


@pytest.mark.parametrize(
    ("outputs", "activation"), [(3, None), (3, "softmax"), (1, "sigmoid"), (1, None)]
)
def test_a_network_of_classes_is_streamed(outputs, activation, tmp_path):
    """Probabilities are those of the plain model, made of logits where it gives these."""
    base = slide(tmp_path / "a.tif")
    image = keras.Input((None, None, 3))
    x = layers.GlobalAveragePooling2D()(layers.Conv2D(4, 3, padding="same")(image) / 255)
    model = keras.Model(image, layers.Dense(outputs, activation)(x))
    model.save(tmp_path / "m.keras")
    out = tmp_path / "out"
    assert (
        main(["predict", str(tmp_path / "m.keras"), str(tmp_path / "a.tif"), "--out", str(out)])
        == 0
    )
    expected = model.predict(base[None].astype(np.float32), verbose=0)[0]
    if activation is None:
        expected = (
            1 / (1 + np.exp(-expected))
            if outputs == 1
            else np.exp(expected) / np.exp(expected).sum()
        )
    expected = [1 - expected[0], expected[0]] if outputs == 1 else expected
    (row,) = table(out)
    found = [float(row[f"probability_{n}"]) for n in range(len(expected))]
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert row["predicted"] == str(np.argmax(expected))


def test_models_that_make_no_masks(tmp_path, capsys):
    slide(tmp_path / "a.tif")
    image = keras.Input((None, None, 3))
    keras.Model(image, layers.Conv2D(2, 1)(image)[..., None]).save(tmp_path / "m.keras")
    (tmp_path / "torn.keras").write_bytes(b"torn")
    (tmp_path / "none").mkdir()
    darkness(tmp_path / "gray.keras", channels=1)
    for model, flags, message in (
        ("m.keras", (), "expected images [N, H, W, C] to masks [N, H, W, K] or to classes"),
        ("torn.keras", (), "torn.keras: cannot be loaded as a Keras model"),
        ("missing.keras", (), "missing.keras: there is no such file"),
        ("none", (), "none: is no run folder of train.py"),
        ("gray.keras", ("--input", "rgb"), "sees 1 channels; --input rgb has others"),
        ("gray.keras", ("--classes", "a"), "--classes: 1 names; the network has 2 classes"),
        (
            "gray.keras",
            ("--mpp", "1", "--level", "1"),
            "give one of --mpp, --magnification, --level",
        ),
    ):
        own = [
            str(tmp_path / model),
            str(tmp_path / "a.tif"),
            "--out",
            str(tmp_path / "out"),
            *flags,
        ]
        assert main(["predict", *own]) == 1
        assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
