"""The ways in which a network runs, and the ways in which its images are cut: each compared with plain Keras."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from exactness import FLOAT64, assert_same, integer_weights, integers
from layer_cases import Case
from skipped_background import Skipping, image_of, mask_of, projected, small_tiles
from tiles import cut_in_tiles
from twins import assert_close, unlike_at_start

import tfbig
from tfbig.plan.canonical import Canonical

WIDE = {1: (150,), 2: (61, 70), 3: (40, 32, 6)}
"""Size of images with background."""


class Pair:
    """A streamed network and its plain twin, with equal weights.

    Args:
        case: The layer between plain convolutions.
        x: Images.
        weights: Function from a network to the weights that both start with.
        **options: Arguments of `tfbig.stream`.

    Attributes:
        skipping: Record of the plans that skipped background, if there is any.
        compiles: Whether XLA compiles what computes a strip.
    """

    def __init__(
        self, case: Case, x: np.ndarray, weights: Callable[[Any], Any], **options: Any
    ) -> None:
        self.case = case
        self.x = x
        self.model, self.twin = case.model(), case.model()
        self.weights = weights(self.twin)
        self.skipping: Skipping | None = None
        self.compiles = False
        self.streamed = tfbig.stream(self.model, **options)
        self.reference = tfbig.stream(self.twin) if case.random else self.twin
        self.twin.run_eagerly = True  # a trace would take longer than the few steps of a test
        self.start()

    def start(self) -> None:
        """Give both networks their weights at the start, and set the seeds."""
        for model in (self.model, self.twin):
            model.set_weights(self.weights)

    def both(self, run: Callable[[Any], Any]) -> tuple[Any, Any]:
        """Return the results of both; random numbers start from the same seed."""
        results = []
        for model in (self.streamed, self.reference):
            keras.utils.set_random_seed(5)
            results.append(run(model))
        return results[0], results[1]

    def targets(self) -> list[np.ndarray]:
        """Return a target for each output."""
        outputs = keras.tree.flatten(self.twin(self.x, training=False))
        draw = np.random.default_rng(3)
        return [draw.normal(size=y.shape).astype(self.x.dtype) for y in outputs]

    def skips(self, path: str) -> bool:
        """Return whether background is skipped on a path."""
        images = any(len(y.shape) == len(self.x.shape) for y in self.twin.outputs)
        with_targets = path in WITH_TARGETS and images
        return self.case.skips and path not in OF_PIXELS and not with_targets


def _call(pair: Pair, rtol: float, folder: Path) -> None:
    x = tf.constant(pair.x)
    assert_same(*pair.both(lambda m: m(x, training=False)), rtol)


def _call_in_training(pair: Pair, rtol: float, folder: Path) -> None:
    x = tf.constant(pair.x)
    assert_same(*pair.both(lambda m: m(x, training=True)), rtol)
    assert_same(pair.model.get_weights(), pair.twin.get_weights(), rtol)


def _traced(pair: Pair, rtol: float, folder: Path) -> None:
    """Call in a function of the user, for images of any size, if plain Keras can."""
    case, x = pair.case, tf.constant(pair.x)
    side = x.shape[1:-1] if case.fixed or case.sized else (None,) * case.spatial
    spec = tf.TensorSpec((None, *side, x.shape[-1]), x.dtype)

    def run(model: Any) -> Any:
        return tf.function(lambda x: model(x, training=False), [spec])(x)

    assert_same(*pair.both(run), rtol)


def _tape(pair: Pair, rtol: float, folder: Path) -> None:
    """Compare outputs, the gradients of the image and of the weights, and moving statistics, in training.

    Background has no gradient of its own: there, those of the weights alone are compared.
    """
    x, cotangents = (
        tf.constant(pair.x),
        [integers(y.shape, pair.x.dtype, 2) for y in pair.targets()],
    )

    def run(model: Any) -> Any:
        weights = [v._value for v in model.trainable_variables]
        sources = [*weights] if pair.skipping else [x, *weights]
        with tf.GradientTape() as tape:
            tape.watch(sources)
            outputs = keras.tree.flatten(model(x, training=True))
        seeds = [tf.constant(c) for c in cotangents]
        gradients = tape.gradient(outputs, sources, seeds, unconnected_gradients="zero")
        named = {"outputs": outputs, "gradients": gradients, "variables": model.get_weights()}
        return {what: {str(i): t for i, t in enumerate(ts)} for what, ts in named.items()}

    actual, expected = pair.both(run)
    if rtol:
        assert_close(actual, expected, rtol)
    else:
        assert_same(actual, expected)


def _predict(pair: Pair, rtol: float, folder: Path) -> None:
    assert_same(*pair.both(lambda m: m.predict(pair.x, batch_size=1, verbose=0)), rtol)


def _compiled(pair: Pair) -> list[np.ndarray]:
    targets = pair.targets()
    for model in (pair.streamed, pair.reference):
        optimizer = keras.optimizers.SGD(0.01, momentum=0.9)
        how = {"jit_compile": True} if pair.compiles and model is pair.streamed else {}
        how |= {"run_eagerly": True} if model is pair.twin else {}
        model.compile(optimizer, ["mse"] * len(targets), **how)
    return targets


def _same_logs(pair: Pair, rtol: float, run: Callable[[Any], Any]) -> None:
    actual, expected = pair.both(run)
    assert list(actual) == list(expected)
    assert_same(*([np.float64(v) for v in logs.values()] for logs in (actual, expected)), rtol)
    assert_same(pair.model.get_weights(), pair.twin.get_weights(), rtol)


def _evaluate(pair: Pair, rtol: float, folder: Path) -> None:
    y = _compiled(pair)
    _same_logs(pair, rtol, lambda m: m.evaluate(pair.x, y, 1, verbose=0, return_dict=True))


def _fit(pair: Pair, rtol: float, folder: Path) -> None:
    """Compare the losses and all weights after two epochs."""
    y = _compiled(pair)

    def run(model: Any) -> Any:
        fitted = model.fit(pair.x, y, 2, epochs=2, shuffle=False, verbose=0)
        return {name: values[-1] for name, values in fitted.history.items()}

    _same_logs(pair, rtol, run)


def _train_on_batch(pair: Pair, rtol: float, folder: Path) -> None:
    y = _compiled(pair)
    _same_logs(pair, rtol, lambda m: m.train_on_batch(pair.x, y, return_dict=True))


def _saved(pair: Pair, rtol: float, folder: Path) -> None:
    pair.streamed.save(folder / "model.keras")
    loaded = keras.saving.load_model(folder / "model.keras")
    assert_same(loaded(pair.x, training=False), pair.twin(pair.x, training=False), rtol)


def _predict_to(pair: Pair, rtol: float, folder: Path) -> None:
    """Write the prediction of one image, if it is one image, of two axes or three."""
    expected = keras.tree.flatten(pair.twin(pair.x[:1], training=False))
    one_image = len(expected) == 1 and len(expected[0].shape) == len(pair.x.shape)
    if one_image and pair.streamed.outputs_stream and pair.case.spatial > 1:
        image = tfbig.open(pair.x[0])
        pair.streamed.predict_to(image, folder / "result.npy")
        assert_same(np.load(folder / "result.npy"), expected[0][0].numpy(), rtol)


Run = Callable[[Pair, float, Path], None]
PATHS: dict[str, Run] = {
    "call": _call,
    "tape": _tape,
    "predict": _predict,
    "train_on_batch": _train_on_batch,
    "call in training": _call_in_training,
    "evaluate": _evaluate,
    "traced": _traced,
    "fit": _fit,
    "saved": _saved,
    "predict_to": _predict_to,
}
"""How a network runs."""

WAYS = ("strips", "tiles", "background", "static channels", "integers", "compiled")
"""How its images are cut and what a trace knows: the number of channels is unknown unless it says otherwise.

"compiled" has strips of one size, as an accelerator, and XLA compiles what computes them.
"""

OF_PIXELS = ("traced", "predict_to")
"""Paths on which nothing says where the background is."""

WITH_TARGETS = ("train_on_batch", "evaluate", "fit")
"""Paths on which targets differ from pixel to pixel if an output is an image."""

WITH_GRADIENTS = ("tape", "train_on_batch", "fit")
"""Paths that compute gradients."""

WITH_TIES = ("integers", "background")
"""Ways in which many neighbouring pixels are equal."""

FLOAT32 = 420 * 2**-24
"""Error of float32 sums in different orders, of the pixels of two images of 7 x 6 x 5."""

ON_INTEGERS = ("call", "tape", "predict")
"""Paths on which sums of integers stay exact in float32."""


def combinations(case: Case) -> list[tuple[str, str]]:
    """Return the ways and paths that apply to a case."""
    return [
        (way, path)
        for way in WAYS
        for path in PATHS
        if (way != "integers" or (case.exact and path in ON_INTEGERS))
        and not (way == "integers" and path == "tape" and case.divides)
        and not (way in WITH_TIES and path in WITH_GRADIENTS and case.ties)
        and (path != "saved" or case.saves)
        and (way != "tiles" or (case.tiles and case.spatial > 1))
    ]


def one_of(case: Case, number: int) -> tuple[str, str]:
    """Return one of the combinations, another for each number, so that cases in a row have all of them together.

    But for the longest: `fit`, as `train_on_batch` runs the same step, and all that XLA compiles.
    """
    every = [each for each in combinations(case) if each[0] != "compiled" and each[1] != "fit"]
    return every[number * 5 % len(every)]


@contextmanager
def float_type(dtype: str) -> Iterator[None]:
    """Make an element type the default for layers, losses and optimizers in a `with` block."""
    keras.config.set_floatx(dtype)
    keras.config.set_dtype_policy(dtype)
    try:
        yield
    finally:
        keras.config.set_floatx("float32")
        keras.config.set_dtype_policy("float32")


def on_one_path(cases: Sequence[Case], share: int = 1) -> list[Any]:
    """Return parameters `(number, case)`; all but the first case of a name, of each `share`-th name, are slow.

    Those that are not slow are numbered in a row, so that together they have every way and path.
    """
    names: set[str] = set()
    parameters, fast = [], 0
    for number, case in enumerate(cases):
        if case.of not in names and len(names) % share == 0:
            parameters.append(pytest.param(fast, case, id=case.name))
            fast += 1
        else:
            parameters.append(pytest.param(number, case, id=case.name, marks=pytest.mark.slow))
        names.add(case.of)
    return parameters


def check_one(case: Case, number: int, folder: Path) -> None:
    """Check one combination of a case, see `one_of`."""
    way, path = one_of(case, number)
    check(case, way, [path], folder)


def check_all(case: Case, way: str, folder: Path) -> None:
    """Check all paths of a case in one way, if it applies."""
    paths = [path for each, path in combinations(case) if each == way]
    if paths:
        check(case, way, paths, folder)


def check(case: Case, way: str, paths: list[str], folder: Path) -> None:
    """Assert that a streamed network equals the plain one.

    Args:
        case: The layer.
        way: One of `WAYS`.
        paths: Some of `PATHS`.
        folder: Folder for files.
    """
    with pytest.MonkeyPatch.context() as monkeypatch:
        dtype = "float64" if case.float64 and way != "integers" else "float32"
        exact = case.float64 and not case.partly_float32
        rtol = 0.0 if way == "integers" else FLOAT64 if exact else FLOAT32
        with float_type(dtype), warnings.catch_warnings():
            if not case.skips:
                warnings.filterwarnings("ignore", ".* differ from pixel to pixel")
            # Keras warns of layers without a gradient; that all weights stay equal is asserted.
            warnings.filterwarnings("ignore", "Gradients do not exist for variables")
            warnings.filterwarnings("ignore", "NotImplemented should not", DeprecationWarning)
            pair = _pair(case, way, monkeypatch)
            if pair.compiles:
                _compiled(pair)
            for path in paths:
                pair.start()
                required = pair.skipping is not None and pair.skips(path)
                if pair.skipping is not None:
                    pair.skipping.required = required
                try:
                    PATHS[path](pair, rtol, folder)
                    if required:
                        assert pair.skipping.plans, "no plan skipped the background"
                except Exception as error:
                    error.add_note(f"{case.name}: {way}, {path}")
                    raise


def _pair(case: Case, way: str, monkeypatch: pytest.MonkeyPatch) -> Pair:
    """Return the networks that a way compares."""
    if way == "background":
        size = WIDE[case.spatial] if not case.fixed and case.size is None else case.extent
        mask, skipping = mask_of(size, seed=1), small_tiles(monkeypatch)
        skipping.known[size] = projected(mask)
        x = image_of(mask, 3, 2, keras.config.floatx())
        pair = Pair(case, x, _random, source_dtype=x.dtype.name)
        pair.skipping = skipping
        return pair
    if way == "integers":
        x = integers((2, *case.extent, 3), top=1)
        return Pair(case, x, lambda m: integer_weights(m, 1), strip_rows=2)
    if way == "tiles":
        cut_in_tiles(monkeypatch)
    if way == "static channels":
        monkeypatch.setattr(Canonical, "any_channels", _Never(), raising=False)
    x = np.random.default_rng(0).normal(size=(2, *case.extent, 3)).astype(keras.config.floatx())
    options = {"devices": "/CPU:0"} if way == "compiled" else {}
    pair = Pair(case, x, _random, strip_rows=2, source_dtype=x.dtype.name, **options)
    pair.compiles = way == "compiled"
    return pair


class _Never:
    """An attribute that is False whatever is assigned."""

    def __get__(self, instance: Any, owner: Any = None) -> bool:
        return False

    def __set__(self, instance: Any, value: Any) -> None:
        pass


def _random(model: Any) -> list[np.ndarray]:
    """Return weights of a model, none of them trivially zero or one."""
    unlike_at_start(model)
    return model.get_weights()
