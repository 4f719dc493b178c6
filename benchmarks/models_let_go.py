"""Memory and Python objects that a process keeps of a model after it is deleted.

    python benchmarks/models_let_go.py [--kinds keras streamed mil patchgd] [--rounds 50] >> results.jsonl

Each kind runs in its own process. A round builds a model, compiles it, fits one step and deletes it. After some rounds
that fill the caches, the figures are the growth per round of the resident memory and of the objects that the garbage
collector counts. `keras.utils.clear_session` is never called. `functions` fits nothing: it traces and deletes as many
functions as a streamed model does, in plain TensorFlow.
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
sys.path[0] = str(Path(__file__).resolve().parent.parent)

from benchmarks import harness, report

SIDE = 16
FUNCTIONS = 6
"""Functions that a step of the streamed model traces."""


def network(whole: bool):
    """Return a small CNN with BatchNormalization: an encoder, or if `whole` a segmentation network."""
    import keras

    image = keras.Input((None, None, 3))
    x = keras.layers.Conv2D(4, 3, padding="same", use_bias=False)(image)
    x = keras.layers.ReLU()(keras.layers.BatchNormalization()(x))
    x = keras.layers.Conv2D(4, 3, padding="same")(x)
    return keras.Model(image, x if whole else keras.layers.GlobalAveragePooling2D()(x))


def plain_round() -> None:
    """Fit a plain Keras model for one step."""
    fit(network(whole=True))


def streamed_round() -> None:
    """Fit a streamed model for one step."""
    import tfbig

    fit(tfbig.stream(network(whole=True), strip_rows=8))


def fit(model) -> None:
    """Fit a model of images for one step."""
    import numpy as np

    model.compile("adam", "mse", jit_compile=False)  # XLA keeps what it compiled, of all kinds
    image = np.zeros((1, SIDE, SIDE, 3), np.float32)
    model.fit(image, np.zeros((1, SIDE, SIDE, 4), np.float32), verbose=0)


def mil_round() -> None:
    """Fit a MIL model for one step, on a bag of four tiles."""
    import keras
    import numpy as np

    import tfbig

    model = tfbig.mil.MIL(
        network(whole=False),
        tfbig.mil.MeanPooling(2),
        instance_shape=(SIDE, SIDE, 3),
        instances_at_once=2,
    )
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.fit(np.zeros((1, 4, SIDE, SIDE, 3), np.uint8), np.zeros(1, int), verbose=0)


def patchgd_round() -> None:
    """Fit a PatchGD model for one step, on an image of four patches."""
    import keras
    import numpy as np

    import tfbig
    from tfbig.models import latent

    model = tfbig.PatchGD(
        network(whole=False), latent.conv_head(2, latent=4), SIDE, None, 2, 2, patches_at_once=2
    )
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.fit(np.zeros((1, 2 * SIDE, 2 * SIDE, 3), np.uint8), np.zeros(1, int), verbose=0)


def functions_round() -> None:
    """Trace functions that call one another, as the sweeps of a step are called, and run the outermost."""
    import tensorflow as tf

    def nested(depth: int):
        inner = nested(depth - 1) if depth > 1 else tf.identity
        return tf.function(lambda x: inner(x) + 1.0, autograph=False)

    nested(FUNCTIONS)(tf.zeros([2]))


ROUNDS: dict[str, Callable[[], None]] = {
    "keras": plain_round,
    "streamed": streamed_round,
    "mil": mil_round,
    "patchgd": patchgd_round,
    "functions": functions_round,
}


@dataclass(frozen=True)
class Arguments:
    kinds: Annotated[Sequence[str], tuple(ROUNDS)] = tuple(ROUNDS)
    rounds: int = 50
    warm_up: Annotated[int, "rounds before the first measurement"] = 10


def kept(arguments: Arguments, kind: str) -> dict[str, float]:
    """Return what this process keeps of each model of a kind: bytes of resident memory, and objects."""
    for _ in range(arguments.warm_up):
        ROUNDS[kind]()
    before = held()
    for _ in range(arguments.rounds):
        ROUNDS[kind]()
    growth = [(now - then) / arguments.rounds for now, then in zip(held(), before, strict=True)]
    return {"kept_bytes": round(growth[0]), "kept_objects": round(growth[1], 1)}


def held() -> tuple[int, int]:
    """Return the resident memory and the number of objects of this process, without garbage."""
    for _ in range(3):  # finalizers of the first garbage leave more
        gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return report.memory_bytes()[0], len(gc.get_objects())


def main() -> None:
    arguments = harness.read(Arguments)
    for kind in arguments.kinds:
        figures = harness.apart(kept, arguments, kind)
        size = [SIDE, SIDE, 3]
        print(report.line(f"models_let_go {kind}", size, rounds=arguments.rounds, **figures))


if __name__ == "__main__":
    main()
