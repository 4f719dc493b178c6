"""Masks of slides equal those of the plain model, in files that other programs open."""

import json

import keras
import numpy as np
import pytest
import shapely
import shapely.geometry
import tifffile
from cli_runs import failures, predictions, write_rectangle
from PIL import Image
from samples import darkness
from scanned_slides import TISSUE, write_scanned
from skipped_background import small_tiles

from tfbig.cli.main import main
from tfbig.results import outlines, slide_viewer
from tfbig.sources import open_slide
from tfbig.tissue import find_tissue, masked


@pytest.mark.slow
def test_mask_equals_plain_model(tmp_path, capsys, usual_figures):
    base, out = write_rectangle(tmp_path / "a.tif"), tmp_path / "out"
    model = darkness(tmp_path / "m.keras")
    flags = ("--out", str(out), "--class-names", "glass", "tissue", "--probabilities", "--quiet")
    assert main(["predict", str(tmp_path / "m.keras"), str(tmp_path / "a.tif"), *flags]) == 0
    assert "a.tif: 300 x 420, " in capsys.readouterr().out
    names = {
        "a.ome.tif",
        "a.geojson",
        "a.png",
        "a_probabilities.ome.tif",
        "predictions.csv",
        "predict.yaml",
        *(".lock", ".tfbig-files", "report.html", "versions.json", "views"),
    }
    assert {p.name for p in out.iterdir()} == names
    padded = np.pad(base, ((0, 20), (0, 28), (0, 0)))  # to multiples of 32
    expected = model.predict(padded[None].astype(np.float32), verbose=0)[0, :300, :420]
    labels = (expected > 0.5).astype(np.uint8)
    assert 0.2 < labels.mean() < 0.4
    mask = open_slide(out / "a.ome.tif")
    np.testing.assert_array_equal(mask.read((0, 300), (0, 420)), labels)
    assert mask.mpp == pytest.approx((0.5, 0.5))
    probabilities = open_slide(out / "a_probabilities.ome.tif").read((0, 300), (0, 420))
    np.testing.assert_allclose(probabilities / 255, expected, atol=0.51 / 255)
    features = json.loads((out / "a.geojson").read_text())["features"]
    shapes = [shapely.from_geojson(json.dumps(f["geometry"])) for f in features]
    assert all(shape.is_valid for shape in shapes)
    area = sum(shape.area for shape in shapes)
    assert area == pytest.approx(labels.sum(), rel=0.02)
    assert {f["properties"]["classification"]["name"] for f in features} == {"tissue"}
    (row,) = predictions(out)
    assert float(row["share_tissue"]) == pytest.approx(labels.mean())
    assert float(row["mm2_tissue"]) == pytest.approx(labels.sum() * 0.25e-6)
    with Image.open(out / "a.png") as picture:
        assert min(picture.size) > 300


def test_classes_and_resolution(tmp_path):
    write_rectangle(tmp_path / "a.tif")
    model = darkness(tmp_path / "m.keras", outputs=3)
    out = tmp_path / "out"
    flags = ("--out", str(out), "--mpp", "1.0", "--pad-to", "16")
    assert main(["predict", str(tmp_path / "m.keras"), str(tmp_path / "a.tif"), *flags]) == 0
    mask = open_slide(out / "a.ome.tif")
    assert mask.shape == (150, 210, 1)
    assert mask.mpp == pytest.approx((1.0, 1.0))
    labels = mask.read((0, 150), (0, 210))[..., 0]
    small = open_slide(tmp_path / "a.tif").at(mpp=1.0).read(0, 150)
    padded = np.pad(small, ((0, 10), (0, 14), (0, 0)))  # to multiples of 16
    expected = model.predict(padded[None].astype(np.float32), verbose=0)[0, :150, :210].argmax(2)
    np.testing.assert_array_equal(labels, expected)
    assert set(np.unique(labels)) == {0, 1, 2}
    assert list(predictions(out)[0])[-6:] == [
        "share_0",
        "share_1",
        "share_2",
        "mm2_0",
        "mm2_1",
        "mm2_2",
    ]
    features = json.loads((out / "a.geojson").read_text())["features"]
    bounds = shapely.from_geojson(json.dumps(features[0]["geometry"])).bounds
    assert bounds[2] > 210  # in pixels of level 0


@pytest.mark.slow
def test_failed_slide_leaves_no_file(tmp_path, monkeypatch):
    write_rectangle(tmp_path / "a.tif")
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
    assert len(predictions(tmp_path / "out")) == 1


def test_noise_is_said_to_have_too_many_regions(tmp_path, capsys, monkeypatch):
    """The largest regions of a speckled mask have outlines; the number of the others is printed."""
    monkeypatch.setattr(outlines, "MOST_REGIONS", 5)
    light = np.random.default_rng(0).random((24, 24, 1)) < 0.8
    tifffile.imwrite(tmp_path / "a.tif", np.kron(light, np.full((8, 8, 3), 255, np.uint8)))
    model, out = tmp_path / "m.keras", tmp_path / "out"
    darkness(model)
    flags = ("--smallest", "1", "--out", str(out), "--quiet")
    assert main(["predict", str(model), str(tmp_path / "a.tif"), *flags]) == 0
    assert "a.tif: outlines of the 5 largest regions and holes; " in capsys.readouterr().out
    assert len(json.loads((out / "a.geojson").read_text())["features"]) == 5


def test_background_is_skipped(tmp_path, monkeypatch, capsys):
    """The mask is that of the plain model on the masked slide; the table says how much is computed."""
    skipping = small_tiles(monkeypatch, 16)
    write_rectangle(tmp_path / "a.tif")
    model, out = darkness(tmp_path / "m.keras"), tmp_path / "out"
    flags = ("--out", str(out), "--tissue", "grey", "--dilation", "5", "--quiet")
    assert main(["predict", str(tmp_path / "m.keras"), str(tmp_path / "a.tif"), *flags]) == 0
    (row,) = predictions(out)
    assert float(row["foreground"]) < float(row["computed"]) < 0.9
    assert float(row["computed"]) == skipping.plans[-1].active
    (view,) = slide_viewer.read_views(out)
    assert [layer.name for layer in view.overlays] == ["prediction", "foreground"]
    expected = (
        f"{float(row['computed']):.1%} computed for {float(row['foreground']):.1%} foreground"
    )
    assert expected in capsys.readouterr().out
    slide = open_slide(tmp_path / "a.tif")
    image = masked(slide, find_tissue(slide, "grey"), dilation=5).read(0, 300)
    padded = np.pad(image, ((0, 20), (0, 28), (0, 0)))  # to multiples of 32
    labels = model.predict(padded[None].astype(np.float32), verbose=0)[0, :300, :420] > 0.5
    np.testing.assert_array_equal(open_slide(out / "a.ome.tif").read((0, 300), (0, 420)), labels)
    assert 0.2 < labels.mean() < 0.4


def test_masks_of_background_that_cannot_be_used(tmp_path, capsys):
    """Each slide is refused in one line, and the others are predicted."""
    darkness(tmp_path / "m.keras")
    (tmp_path / "masks").mkdir()
    values = {"empty": np.zeros((75, 105)), "other": np.ones((300, 300)), "all": np.ones((75, 105))}
    for name, mask in values.items():
        write_rectangle(tmp_path / f"{name}.tif")
        np.save(tmp_path / "masks" / f"{name}.npy", mask.astype(np.uint8))
    out, slides = tmp_path / "out", [str(tmp_path / f"{name}.tif") for name in values]
    flags = ("--tissue", str(tmp_path / "masks"), "--out", str(out), "--quiet")
    assert main(["predict", str(tmp_path / "m.keras"), *slides, *flags]) == 3
    reasons = {row["item"].rpartition("/")[2]: row["reason"] for row in failures(out)}
    assert reasons.keys() == {"empty.tif", "other.tif"}
    assert "its mask is 0 everywhere" in reasons["empty.tif"]
    assert "a mask of 300 x 300 for an image of 300 x 420" in reasons["other.tif"]
    assert [row["foreground"] for row in predictions(out)] == ["1.0"]
    capsys.readouterr()
    colour = ("--leave-out", "1", "2", "3", "--out", str(tmp_path / "colour"), "--quiet")
    assert main(["predict", str(tmp_path / "m.keras"), slides[0], *colour]) == 3
    assert "has no cell" in capsys.readouterr().err


def write_dark(path):
    """Write a network that finds pixels whose channels have a mean below 200, and that sees no neighbours."""
    image = keras.Input((None, None, 3))
    layer = keras.layers.Conv2D(1, 1, activation="sigmoid")
    model = keras.Model(image, layer(image))
    layer.set_weights([-np.ones((1, 1, 3, 1)), np.array([600.0])])
    model.save(path)


def union_of(path):
    """Return the union of the outlines of a file."""
    features = json.loads(path.read_text())["features"]
    return shapely.union_all([shapely.geometry.shape(f["geometry"]) for f in features])


@pytest.mark.parametrize("origin", ["scanned", "level-0"])
def test_outlines_of_a_scanned_slide(tmp_path, monkeypatch, capsys, origin):
    path = write_scanned(tmp_path / "a.scn", monkeypatch)
    write_dark(tmp_path / "m.keras")
    flags = [*("--pad-to", "16", "--out", str(tmp_path / "out")), "--outline-origin", origin]
    assert main(["predict", str(tmp_path / "m.keras"), str(path), *flags]) == 0
    (top, bottom), (left, right) = TISSUE
    row, column = (50, 100) if origin == "scanned" else (0, 0)
    expected = shapely.box(left - column, top - row, right - column, bottom - row)
    found = union_of(tmp_path / "out" / "a.geojson")
    assert found.symmetric_difference(expected).area < 0.01 * expected.area
    assert ("counted from the scanned area" in capsys.readouterr().out) == (origin == "scanned")
    mask = tifffile.imread(tmp_path / "out" / "a.ome.tif")
    rows, columns = (np.flatnonzero(mask.any(axis)) for axis in (1, 0))
    assert (rows[0], rows[-1] + 1, columns[0], columns[-1] + 1) == (top, bottom, left, right)


def test_pixels_that_are_not_square(tmp_path, capsys):
    """Outlines, areas and the view use the size of pixels along both axes: 0.25 um of rows, 0.2 um of columns."""
    image = np.full((384, 640, 3), 240, np.uint8)
    image[100:300, 400:550] = (130, 70, 160)
    per_cm = 1e4 / 0.2, 1e4 / 0.25
    options = {"photometric": "rgb", "resolution": per_cm, "resolutionunit": "CENTIMETER"}
    tifffile.imwrite(tmp_path / "a.tif", image, tile=(64, 64), **options)
    assert open_slide(tmp_path / "a.tif").mpp == pytest.approx((0.25, 0.2))
    write_dark(tmp_path / "m.keras")
    out = tmp_path / "out"
    flags = ["--mpp", "0.5", "--pad-to", "16", "--smallest", "1", "--out", str(out)]
    assert main(["predict", str(tmp_path / "m.keras"), str(tmp_path / "a.tif"), *flags]) == 0
    mask = open_slide(out / "a.ome.tif")
    assert mask.shape[:2] == (192, 256)
    assert mask.mpp == pytest.approx((0.5, 0.5))
    found = union_of(out / "a.geojson")
    expected = shapely.box(400, 100, 550, 300)
    assert found.bounds == pytest.approx(expected.bounds, abs=3)
    assert found.symmetric_difference(expected).area < 0.03 * expected.area
    (row,) = predictions(out)
    um2 = 200 * 150 * 0.25 * 0.2
    assert float(row["mm2_1"]) == pytest.approx(um2 / 1e6, rel=0.02)
    (view,) = slide_viewer.read_views(out)
    with Image.open(view.overlays[0].file) as file:
        painted = np.asarray(file)[..., 3] > 0
    rows, columns = (np.flatnonzero(painted.any(axis)) for axis in (1, 0))
    assert view.overlays[0].share == pytest.approx(1, abs=0.01)
    side = 640 / painted.shape[1]  # of a pixel of the overlay, which is square
    edges = np.array([rows[0], rows[-1] + 1, columns[0], columns[-1] + 1]) * side
    assert edges == pytest.approx((100, 300, 400, 550), abs=4)
    assert "1 of 1 slide with pixels that are not square" in capsys.readouterr().err
