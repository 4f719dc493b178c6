"""Models saved by version 0.1 before its modules were moved still load, by `import tfbig` alone."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile

import keras
import numpy as np
import pytest
from samples import ENVIRONMENT, FILES

import tfbig  # noqa: F401  (registers the classes)

SAVED = FILES / "saved"
NAMES = ("big_layers", "streamed", "mil", "transmil", "patchgd")


def inputs(name: str, arrays: dict[str, np.ndarray]) -> np.ndarray:
    """Return the inputs of the saved predictions."""
    x = arrays["x"]
    other = {
        "mil": arrays["bag"],
        "transmil": x[..., :1].reshape(2, 30, 4),
        "patchgd": x[:, :8, :8],
    }
    return other.get(name, x)


@pytest.mark.parametrize("name", NAMES)
def test_predictions_are_unchanged(name: str) -> None:
    arrays = dict(np.load(SAVED / "predictions.npz"))
    model = keras.models.load_model(SAVED / f"{name}.keras")
    predicted = model(inputs(name, arrays), training=False)
    # float32 convolutions sum in an order that depends on the processor
    np.testing.assert_allclose(predicted, arrays[name], rtol=0, atol=2e-5)


def test_files_name_modules_that_no_longer_exist() -> None:
    """Otherwise the test above would show nothing."""
    with zipfile.ZipFile(SAVED / "transmil.keras") as file:
        config = json.loads(file.read("config.json"))
    modules = {layer["module"] for layer in config["config"]["layers"]}
    assert "models.transmil" in modules


@pytest.mark.slow
@pytest.mark.parametrize(
    ("imported", "is_found"),
    [
        ("import tfbig, keras", True),
        ("import keras, tfbig", True),
        (
            "import tfbig_command\nwith tfbig_command.light_imports(): import tfbig\nimport keras",
            False,
        ),
    ],
)
def test_importing_tfbig_is_enough(imported: str, is_found: bool) -> None:
    """And is necessary, so that `tfbig/__init__.py` cannot leave its imports for later."""
    program = f"""{imported}
try:
    print(keras.models.load_model({str(SAVED / "big_layers.keras")!r}).name)
except TypeError as error:
    print("Could not locate class" in str(error))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], env=ENVIRONMENT, capture_output=True, text=True, check=True
    )
    assert (done.stdout.strip() == "True") != is_found


@pytest.mark.slow
def test_a_folder_called_models_is_not_imported(tmp_path) -> None:
    """A user's own `models/` stands first on the path, as it does where a script lies next to it."""
    decoy = tmp_path / "models"
    decoy.mkdir()
    (decoy / "__init__.py").write_text("raise ImportError('the decoy was imported')\n")
    program = (
        "import tfbig, tfbig.models.resnet, tfbig.cli.main, keras, sys;"
        f"keras.models.load_model({str(SAVED / 'transmil.keras')!r});"
        "print(tfbig.mil.ABMIL.__module__, 'models' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env=ENVIRONMENT | {"PYTHONPATH": f"{tmp_path}:{ENVIRONMENT['PYTHONPATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split() == ["tfbig.models.pooling", "False"], done.stderr[-2000:]
