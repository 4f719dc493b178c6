"""Files of unknown origin: loading a model runs no code unless `--custom` names it."""

import importlib
import json
import sys
import threading
import zipfile
from pathlib import Path

import h5py
import keras
import numpy as np
import pytest
from keras.layers import Conv2D
from resource_limits import cheap

import tfbig
from tfbig import SourceError
from tfbig.cli import load_model
from tfbig.cli.main import main
from tfbig.models.resnet import resnet18
from tfbig.sources import untrusted


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


def test_of_a_streamed_model_the_plain_one_is_loaded(tmp_path):
    plain = model()
    big = tfbig.stream(plain, tfbig.Budget("1MB"))
    big.save(tmp_path / "streamed.keras")
    loaded = load_model.load(tmp_path / "streamed.keras")
    assert type(loaded) is type(plain)
    for weight, other in zip(loaded.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_array_equal(weight, other)


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


DAMAGED = {
    "missing": (None, "no such file; expected a .keras file"),
    "empty": (lambda data: b"", "is empty; expected a file that model.save"),
    "text": (lambda data: b"no model\n", "is not a Keras file; expected a file that model.save"),
    "truncated": (lambda data: data[: len(data) // 2], "is truncated; expected a file that"),
    "changed": (
        lambda data: data[:300] + bytes(b ^ 255 for b in data[300:340]) + data[340:],
        "is damaged: ",
    ),
}


@pytest.mark.parametrize("kind", DAMAGED)
@pytest.mark.parametrize("command", ["predict", "plan"])
def test_damaged_file(path, command, kind, capsys, tmp_path):
    change, message = DAMAGED[kind]
    data = path.read_bytes()
    path.unlink()
    if change is not None:
        path.write_bytes(change(data))
    (tmp_path / "a.png").write_bytes(b"")
    rest = (
        [str(tmp_path / "a.png"), "--out", str(tmp_path / "out")]
        if command == "predict"
        else ["64x64"]
    )
    assert main([command, str(path), *rest]) in (1, 2)
    error = capsys.readouterr().err
    assert f"{path}: " in error
    assert kind == "missing" or message in error
    assert kind == "missing" or "no such file" not in error
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("kind", DAMAGED)
def test_damaged_model(path, kind):
    change, message = DAMAGED[kind]
    data = path.read_bytes()
    path.unlink()
    if change is not None:
        path.write_bytes(change(data))
    with pytest.raises(SourceError, match=rf"model\.keras: {message}"):
        load_model.load(path)
    with pytest.raises(SourceError, match=r"model\.keras: "):
        load_model.load_weights(model(), path)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (["plan.txt"], "{}/model.keras: no such file; expected a .keras file, or a run folder."),
        (["config.yaml", "metrics.json"], "{}: has results, but no model.keras; expected the"),
        (["config.yaml"], "{0}: the run has not finished: .* with tfbig train --resume --out {0}."),
    ],
)
def test_run_without_a_model(files, message, tmp_path):
    for name in files:
        (tmp_path / name).touch()
    with pytest.raises(SourceError, match=message.format(tmp_path)):
        load_model.load(tmp_path / "model.keras")


def test_folder_and_missing_part(path, tmp_path):
    (tmp_path / "folder.keras").mkdir()
    with pytest.raises(SourceError, match=r"folder\.keras: is a folder; expected a .keras file"):
        load_model.load(tmp_path / "folder.keras")
    with zipfile.ZipFile(path) as file:
        config = file.read("config.json")
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("config.json", config)
    with pytest.raises(
        SourceError, match=r"is damaged: it has no metadata\.json and no model\.weights\.h5"
    ):
        load_model.load(path)


def test_weights_of_another_network(path):
    image = keras.Input((None, None, 3))
    other = keras.Model(image, keras.layers.Dense(7)(keras.layers.Dense(2)(image)))
    with pytest.raises(SourceError, match=r"model\.keras: its weights cannot be loaded") as refused:
        load_model.load_weights(other, path)
    assert len(str(refused.value)) < 600  # without a list of all layers


def test_weights_of_a_network_with_other_containers(tmp_path):
    h5py.File(tmp_path / "a.weights.h5", "w").create_group("x")
    with pytest.raises(SourceError, match=r"a\.weights\.h5: its weights cannot be loaded"):
        load_model.load_weights(resnet18(), tmp_path / "a.weights.h5")


def parts_of(path):
    with zipfile.ZipFile(path) as file:
        return {name: file.read(name) for name in file.namelist()}


def packed(path, parts):
    """Write the parts of a `.keras` file with compression."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, data in parts.items():
            file.writestr(name, data)


def test_a_file_that_was_compressed_again(path):
    packed(path, parts_of(path))
    assert load_model.load(path).count_params() == model().count_params()


def test_layers_with_more_weights_than_the_file_holds(path):
    changed(path, lambda layer: layer["config"].update(filters=7 * 10**8))
    with cheap(), pytest.raises(SourceError, match=r"its layers have more than \d+ weights"):
        load_model.load(path)


@pytest.mark.parametrize("class_name", ["GlorotUniform", "Orthogonal", "Constant"])
@pytest.mark.parametrize("seeded", [False, True])
def test_weights_that_are_counted_before_they_are_made(path, class_name, seeded):
    """Also those of an initializer with the state of a seed."""
    initializer = getattr(keras.initializers, class_name)()
    if seeded and class_name != "Constant":
        initializer = type(initializer)(seed=keras.random.SeedGenerator(3))
    config = keras.saving.serialize_keras_object(initializer)
    load_model.load(path)
    changed(path, lambda layer: layer["config"].update(filters=7, kernel_initializer=config))
    with pytest.raises(SourceError, match="cannot be loaded") as refused:  # 7 filters are not in it
        load_model.load(path)
    assert "more than" not in str(refused.value)
    changed(path, lambda layer: layer["config"].update(filters=7 * 10**8))
    with cheap(), pytest.raises(SourceError, match=r"its layers have more than \d+ weights"):
        load_model.load(path)


def test_models_of_other_threads_are_not_counted(path, monkeypatch):
    """Keras is as it was for them, and after loads that overlap."""
    monkeypatch.setattr(load_model, "UNCHECKED_WEIGHTS", 2**12)
    add_weight, loaded = keras.layers.Layer.add_weight, []
    begun, go_on = threading.Event(), threading.Event()

    class Waiting(keras.layers.Layer):
        def build(self, shape):
            begun.set()
            assert go_on.wait(60)

        def call(self, x):
            return x

    keras.saving.register_keras_serializable("tests")(Waiting)
    image = keras.Input((8, 8, 1))
    go_on.set()
    keras.Model(image, keras.layers.Conv2D(2, 3)(Waiting()(image))).save(path)
    go_on.clear()
    begun.clear()
    thread = threading.Thread(target=lambda: loaded.append(load_model.load(path)))
    thread.start()
    assert begun.wait(60)
    assert keras.layers.Layer.add_weight is add_weight
    large = keras.layers.Dense(300)
    large.build((None, 300))  # more weights than the other thread may have
    go_on.set()
    thread.join(60)
    assert loaded[0].count_params() == 20
    assert keras.layers.Layer.add_weight is add_weight


def test_parts_that_are_too_large(path, monkeypatch):
    parts = parts_of(path)
    packed(path, parts | {"config.json": parts["config.json"] + b" " * 2**23})
    with cheap(), pytest.raises(SourceError, match=r"config\.json has 8\.1 MiB; expected at most"):
        load_model.load(path)
    monkeypatch.setattr(untrusted, "ALWAYS_ALLOWED", 2**20)
    packed(path, parts | {"assets": bytes(2**23)})
    with cheap(), pytest.raises(SourceError, match=r"its parts would take 8\.1 MiB"):
        load_model.load(path)


def test_weights_that_are_not_in_the_file(path, tmp_path):
    parts = parts_of(path)
    for options in ({"shape": 10**10}, {"shape": 2, "external": [("/etc/passwd", 0, 8)]}):
        with h5py.File(tmp_path / "weights.h5", "w") as file:
            file.create_dataset("vars", dtype="f4", **options)
        packed(path, parts | {"model.weights.h5": (tmp_path / "weights.h5").read_bytes()})
        with cheap(), pytest.raises(SourceError, match=r"model\.keras: has weights that take far"):
            load_model.load(path)


def test_weights_for_other_channels(tmp_path: Path) -> None:
    def network(channels: int) -> keras.Model:
        image = keras.Input((None, None, channels))
        return keras.Model(image, keras.layers.Conv2D(2, 3)(image))

    network(3).save(tmp_path / "rgb.keras")
    with pytest.raises(
        SourceError,
        match=r"rgb\.keras: expects images of 3 channels, but those of the data have 1\. Save the image in RGB",
    ):
        load_model.load_weights(network(1), tmp_path / "rgb.keras")
    load_model.load_weights(network(3), tmp_path / "rgb.keras")


@keras.saving.register_keras_serializable("tests")
class Subclassed(keras.Model):
    """A model without `inputs`, which knows the shape that it was built with."""

    def __init__(self, **options):
        super().__init__(**options)
        self.only = keras.layers.Conv2D(2, 3)

    def build(self, shape):
        self.only.build(shape)

    def call(self, x):
        return self.only(x)


@pytest.mark.parametrize("kind", ["subclassed", "sequential", "sequential with input"])
def test_weights_of_other_kinds_of_models_for_other_channels(kind: str, tmp_path: Path) -> None:
    def network(channels: int) -> keras.Model:
        shape = (None, 8, 8, channels)
        given = [keras.Input(shape[1:])] if "input" in kind else []
        one = Subclassed() if kind == "subclassed" else keras.Sequential([*given, Conv2D(2, 3)])
        one.build(shape)
        return one

    network(3).save(tmp_path / "rgb.keras")
    wanted = (
        r"rgb\.keras: expects images of 3 channels, but those of the data have 1\. Save the image"
    )
    with pytest.raises(SourceError, match=wanted):
        load_model.load_weights(network(1), tmp_path / "rgb.keras")
    load_model.load_weights(network(3), tmp_path / "rgb.keras")
