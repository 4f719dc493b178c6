"""Classes of whole slides, by a streamed network or PatchGD."""

import json
from pathlib import Path
from types import SimpleNamespace

import keras
import numpy as np
import pytest
from cli_runs import predictions, write_rectangle
from keras import layers

from tfbig import sources
from tfbig.cli.main import main
from tfbig.cli.predictors import images


@pytest.mark.parametrize(
    ("outputs", "activation"),
    [
        (3, None),
        pytest.param(3, "softmax", marks=pytest.mark.slow),
        pytest.param(1, "sigmoid", marks=pytest.mark.slow),
        (1, None),
    ],
)
def test_network_of_classes(outputs, activation, tmp_path):
    """Probabilities equal those of the plain model, computed from logits where it returns logits."""
    base = write_rectangle(tmp_path / "a.tif")
    image = keras.Input((None, None, 3))
    x = layers.GlobalAveragePooling2D()(layers.Conv2D(4, 3, padding="same")(image) / 255)
    model = keras.Model(image, layers.Dense(outputs, activation)(x))
    model.save(tmp_path / "m.keras")
    out = tmp_path / "out"
    command = [str(tmp_path / "m.keras"), str(tmp_path / "a.tif"), "--out", str(out)]
    assert main(["predict", *command]) == 0
    expected = model.predict(base[None].astype(np.float32), verbose=0)[0]
    if activation is None:
        expected = (
            1 / (1 + np.exp(-expected))
            if outputs == 1
            else np.exp(expected) / np.exp(expected).sum()
        )
    expected = [1 - expected[0], expected[0]] if outputs == 1 else expected
    (row,) = predictions(out)
    probabilities = [float(row[f"probability_{n}"]) for n in range(len(expected))]
    np.testing.assert_allclose(probabilities, expected, atol=1e-5)
    assert row["predicted"] == str(np.argmax(expected))
    title = json.loads((out / "views" / "a.json").read_text())["title"]
    assert title == f"a: {row['predicted']} {max(expected):.1%}"


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["patchgd", "offload"])
def test_run_on_whole_slides(mode, whole_slides_run, tmp_path):
    """Predictions equal those of the run itself; a head with attention also gives a map."""
    run, out = whole_slides_run(mode).folder, tmp_path / "out"
    expected = {row["image"]: row for row in predictions(run)}
    paths = list(expected)
    assert main(["predict", str(run), *paths, "--out", str(out)]) == 0
    for row, path in zip(predictions(out), paths, strict=True):
        assert row["slide"] == Path(path).name
        assert (row["rows"], row["columns"]) == ("80", "80")
        key = "probability_red"
        assert float(row[key]) == pytest.approx(float(expected[path][key]), abs=1e-5)
    title = Path(paths[0]).stem
    assert (out / f"{title}_attention.ome.tif").exists() == (mode == "patchgd")
    if mode == "patchgd":
        codes = json.loads((out / f"{title}.geojson").read_text())["features"]
        assert len(codes) == 4  # of 2 x 2 patches
        assert codes[0]["geometry"]["coordinates"][0][2] == [0, 160]
        assert codes[1]["properties"]["classification"]["name"] == "region"
    assert len(list((out / "views").glob("*.json"))) == len(paths)


@pytest.mark.parametrize("crop", [False, True])
def test_places_of_patches_in_a_scaled_image(crop):
    """A pixel of a slide of 1000 x 2000 at 100 x 100 is 10 x 20 of its pixels, and 9.5 x 9.5 in its middle square."""
    array = np.zeros((1000, 2000, 3), np.uint8)
    source = sources.open(array)
    view = sources.CenterCropped(source, 100) if crop else sources.Scaled(source, (100, 100))
    slide = SimpleNamespace(shape=array.shape)
    steps, corner = images._place_of_pixels(slide, view)
    if crop:
        assert steps == pytest.approx((9.5, 9.5), rel=0.01)
        assert corner == pytest.approx((25, 525), abs=10)
    else:
        assert (steps, corner) == ((10, 20), (0, 0))
