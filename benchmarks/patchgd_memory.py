"""Peak memory and time of a training step of PatchGD over the side of the image, with patches of one size.

    python benchmarks/patchgd_memory.py [--sides 512 1024 2048 4096 8192 16384 --encoder resnet18 --patch 256]

Each side runs in its own process: one UltraMNIST image by handle, Z filled slice by slice, four inner steps of 4
patches each (all patches of an image of 512), two at once. Prints one JSON line per side. Memory is the peak of the
whole process.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
sys.path[0] = str(Path(__file__).resolve().parent.parent)

from benchmarks import harness, report


@dataclass(frozen=True)
class Arguments:
    sides: Sequence[int] = (512, 1024, 2048, 4096, 8192, 16384)
    encoder: str = "resnet18"
    patch: int = 256
    sampling: int = 4
    inner_steps: int = 4
    patches_at_once: int = 2


def step(arguments: Arguments, side: int) -> dict[str, float]:
    """Return the seconds of a second training step, and memory, in this process."""
    import keras
    import tensorflow as tf

    import tfbig
    from tfbig.models import encoders, latent
    from tfbig.recipes.digits import drawn_digits
    from tfbig.recipes.ultramnist import ultramnist

    keras.utils.set_random_seed(0)
    factors = (side // 512, 9 * side // 512)
    images, labels = ultramnist(*drawn_digits(300), 1, side, factors)
    encoder = encoders.make(arguments.encoder, (arguments.patch, arguments.patch, 1), latent=256)
    head = latent.conv_head(10)
    model = tfbig.PatchGD(
        encoder,
        head,
        arguments.patch,
        None,
        arguments.sampling,
        arguments.inner_steps,
        patches_at_once=arguments.patches_at_once,
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-4), loss)
    before, _ = report.memory_bytes()
    seconds = []
    for image, label in list(zip(images, labels, strict=True))[:2]:
        began = time.perf_counter()
        model.train_on_batch(tf.constant([image.handle]), label[None])
        seconds.append(time.perf_counter() - began)
    _, peak = report.memory_bytes()
    return {
        "before_bytes": before,
        "peak_bytes": peak,
        "first_s": seconds[0],
        "seconds": seconds[1],
    }


def main() -> None:
    arguments = harness.read(Arguments)
    settings = {key: value for key, value in asdict(arguments).items() if key != "sides"}
    for side in arguments.sides:
        figures = harness.apart(step, arguments, side)
        print(report.line("patchgd_memory", [side, side], **settings, **figures), flush=True)


if __name__ == "__main__":
    main()
