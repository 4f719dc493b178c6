"""Files of unknown origin: loading a model runs no code unless `--custom` names it."""

import importlib
import json
import sys
import zipfile

import keras
import numpy as np
import pytest

from tfbig import SourceError
from tfbig.cli import load_model
from tfbig.cli.main import main


def model():
    image = keras.Input((None, None, 3), name="image")
    return keras.Model(image, keras.layers.Conv2D(1, 3, padding="same", name="only")(image))


def changed(path, change):
    """Replace the config of the layer in a `.keras` file."""
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


def test_plain_model(path):
    assert load_model.load(path).count_params() == model().count_params()


EVIL = {
    "a module of Python": {"module": "os", "class_name": "system", "registered_name": None},
    "a local module": {"module": "evil", "class_name": "Evil", "registered_name": "Evil"},
    "a lambda": {
        "module": "keras.layers",
        "class_name": "Lambda",
        "registered_name": None,
        "config": {
            "name": "only",
            "function": {"class_name": "__lambda__", "config": {"code": "eA=="}},
        },
    },
    "not a layer": {
        "module": "keras.utils",
        "class_name": "get_file",
        "registered_name": None,
    },
}


@pytest.mark.parametrize("name", EVIL)
def test_model_with_code(name, path, tmp_path, monkeypatch, capsys):
    (tmp_path / "evil.py").write_text("open('ran', 'w').write('it did')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    changed(path, lambda layer: layer.update(EVIL[name]))
    with pytest.raises(SourceError, match=r"cannot be loaded as a Keras model .*--custom MODULE"):
        load_model.load(path)
    assert main(["plan", str(path), "64x64"]) == 1
    assert "cannot be loaded" in capsys.readouterr().err
    assert not (tmp_path / "ran").exists()


def test_custom_module(tmp_path, monkeypatch):
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
    custom = keras.Model(image, mine(1, 3, name="only")(image))
    path = tmp_path / "mine.keras"
    custom.save(path)
    del sys.modules["my_layers"]
    keras.saving.get_custom_objects().pop("mine>Mine")
    try:
        with pytest.raises(SourceError, match="Could not locate class 'Mine'"):
            load_model.load(path)
        loaded = load_model.load(path, ["my_layers"])
        assert type(loaded.get_layer("only")).__name__ == "Mine"
        np.testing.assert_array_equal(loaded.get_weights()[0], custom.get_weights()[0])
        with pytest.raises(SourceError, match="--custom no_such_module: cannot be imported"):
            load_model.load(path, ["no_such_module"])
    finally:
        sys.modules.pop("my_layers", None)
