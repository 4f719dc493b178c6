"""Files of others are data: models run no code unless asked to, and with --confine tables name no file elsewhere."""

import csv
import importlib
import json
import sys
import zipfile

import keras
import numpy as np
import pytest
import tifffile

import train
from tfbig import SourceError
from tfbig.cli import load_model
from tfbig.cli.main import main


def model():
    image = keras.Input((None, None, 3), name="image")
    return keras.Model(image, keras.layers.Conv2D(1, 3, padding="same", name="only")(image))


def changed(path, change):
    """The same `.keras` file with another config of its layer."""
    with zipfile.ZipFile(path) as file:
        parts = {name: file.read(name) for name in file.namelist()}
    config = json.loads(parts["config.json"])
    change(config["config"]["layers"][1])
    parts["config.json"] = json.dumps(config).encode()
    with zipfile.ZipFile(path, "w") as file:
        for name, data in parts.items():
            file.writestr(name, data)
    return path


@pytest.fixture
def path(tmp_path):
    model().save(tmp_path / "model.keras")
    return tmp_path / "model.keras"


def test_a_model_of_keras_and_tfbig_is_loaded(path):
    assert load_model.load(path).count_params() == model().count_params()


EVIL = {
    "a module of Python": {"module": "os", "class_name": "system", "registered_name": None},
    "a module of mine": {"module": "evil", "class_name": "Evil", "registered_name": "Evil"},
    "a lambda": {
        "module": "keras.layers",
        "class_name": "Lambda",
        "registered_name": None,
        "config": {
            "name": "only",
            "function": {"class_name": "__lambda__", "config": {"code": "eA=="}},
        },
    },
    "what is no layer": {
        "module": "keras.utils",
        "class_name": "get_file",
        "registered_name": None,
    },
}


@pytest.mark.parametrize("name", EVIL)
def test_a_model_with_code_is_refused(name, path, tmp_path, monkeypatch, capsys):
    (tmp_path / "evil.py").write_text("open('ran', 'w').write('it did')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    changed(path, lambda layer: layer.update(EVIL[name]))
    with pytest.raises(SourceError, match=r"cannot be loaded as a Keras model .*--custom MODULE"):
        load_model.load(path)
    assert main(["plan", str(path), "64x64"]) == 1
    assert "cannot be loaded" in capsys.readouterr().err
    assert not (tmp_path / "ran").exists()


def test_layers_of_a_module_that_was_named_are_loaded(tmp_path, monkeypatch):
    (tmp_path / "my_layers.py").write_text(
        "import keras\n"
        "@keras.saving.register_keras_serializable('mine')\n"
        "class Mine(keras.layers.Conv2D):\n    pass\n"
    )
    monkeypatch.chdir(tmp_path)
    with monkeypatch.context() as patch:
        patch.syspath_prepend(str(tmp_path))
        mine = importlib.import_module("my_layers").Mine
    image = keras.Input((None, None, 3))
    made = keras.Model(image, mine(1, 3, name="only")(image))
    path = tmp_path / "mine.keras"
    made.save(path)
    del sys.modules["my_layers"]
    keras.saving.get_custom_objects().pop("mine>Mine")
    try:
        with pytest.raises(SourceError, match="Could not locate class 'Mine'"):
            load_model.load(path)
        found = load_model.load(path, ["my_layers"])
        assert type(found.get_layer("only")).__name__ == "Mine"
        np.testing.assert_array_equal(found.get_weights()[0], made.get_weights()[0])
        with pytest.raises(SourceError, match="--custom no_such_module: cannot be imported"):
            load_model.load(path, ["no_such_module"])
    finally:
        sys.modules.pop("my_layers", None)


def slide(path, seed=0):
    image = np.full((96, 96, 3), 240, np.uint8)
    image[16:80, 16:80] = np.random.default_rng(seed).integers(60, 180, (64, 64, 3))
    tifffile.imwrite(path, image, photometric="rgb", tile=(32, 32))


def write(path, rows):
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)


def table(folder, names):
    splits = ("train", "val", "test")
    rows = [
        {"slide_id": f"s{i}", "label": i % 2, "split": splits[i % 3], "path": name}
        for i, name in enumerate(names)
    ]
    write(folder / "slides.csv", rows)


SMALL = ["--encoder", "small", "--patch", "32"]
FLAGS = ["--task", "patchgd", "--images", "slides", "--side", "64", "--dry-run", *SMALL]


@pytest.mark.parametrize("how", ["dots", "absolute", "link"])
def test_tables_name_no_file_outside_with_confine(how, tmp_path, capsys):
    data, outside = tmp_path / "data", tmp_path / "outside"
    data.mkdir()
    outside.mkdir()
    names = [f"{i}.tif" for i in range(6)]
    for seed, name in enumerate(names):
        slide(data / name, seed)
    slide(outside / "secret.tif")
    table(data, names)
    flags = [*FLAGS, "--data", str(data / "slides.csv")]
    assert train.main([*flags, "--confine"]) == 0
    (data / "link.tif").symlink_to(outside / "secret.tif")
    names[2] = {
        "dots": "../outside/secret.tif",
        "absolute": str(outside / "secret.tif"),
        "link": "link.tif",
    }[how]
    table(data, names)
    assert train.main(flags) == 0
    assert train.main([*flags, "--confine"]) == 1
    told = capsys.readouterr().err
    assert f"lies outside of {data}, and --confine is set" in told


@pytest.mark.parametrize(
    ("name", "column", "flags"),
    [
        ("images.csv", "image", ["--task", "patchgd", "--images", "folder", *SMALL]),
        ("bags.csv", "bag", ["--task", "mil", "--bags", "folder"]),
    ],
)
def test_tables_of_images_and_of_bags_too(name, column, flags, tmp_path, capsys):
    data = tmp_path / "data"
    data.mkdir()
    for folder, own in ((data, "a.npy"), (tmp_path, "secret.npy")):
        np.save(folder / own, np.zeros((64, 64, 3) if column == "image" else (4, 24, 24, 3), "u1"))
    rows = [
        {column: "a.npy", "label": i % 2, "split": s} for i, s in enumerate(("train", "val") * 2)
    ]
    rows += [{column: "../secret.npy", "label": i, "split": "test"} for i in range(2)]
    write(data / name, rows)
    given = [*flags, "--data", str(data), "--dry-run"]
    assert train.main(given) == 0
    assert train.main([*given, "--confine"]) == 1
    assert "secret.npy: lies outside of" in capsys.readouterr().err
