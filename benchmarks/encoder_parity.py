"""Compare the features of each pathology encoder with those of torch, for the same random weights, in float32.

    python benchmarks/encoder_parity.py [--encoders uni virchow2 --depth 2]

Needs `pip install '.[torch]'`. `tests/programs/torch_transformers.py` builds the network with timm, or as transformers
states it, in a process of its own, and writes its weights to a `.safetensors` file and the features of two images of
2 x 3 patches. tfbig reads the file. By default a network has all of its blocks; the largest needs about 14 GB of memory
and 5 GB of disk. Prints one JSON line for each encoder: the largest difference of a feature, relative to the largest
feature. Trained weights, which must be requested from their authors, are not compared.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
ROOT = Path(__file__).resolve().parent.parent
sys.path[0] = str(ROOT)

import numpy as np

from benchmarks import report
from tfbig.models import pathology_encoders, pretrained

PROGRAM = ROOT / "tests" / "programs" / "torch_transformers.py"
ENCODERS = tuple(pathology_encoders.PATHOLOGY_ENCODERS)


def parse_arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the arguments of the command line."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--encoders", nargs="+", choices=ENCODERS, default=list(ENCODERS))
    parser.add_argument("--depth", type=int, help="blocks of a network; by default all")
    return parser.parse_args(words)


def measure(name: str, depth: int | None) -> dict[str, Any]:
    """Return the figures of an encoder.

    Args:
        name: Name of the encoder.
        depth: Number of its blocks; None for all.
    """
    entry = pathology_encoders.PATHOLOGY_ENCODERS[name]
    depth = depth or entry.network.depth
    side = entry.network.patch
    spec: dict[str, Any] = {"name": name, "network": name, "depth": depth}
    spec["size"] = [2 * side, 3 * side]
    if name == "conch-1.5":  # its positions are those of another size, and interpolated
        spec["stored"] = [2 * side] * 2
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(PROGRAM), folder, json.dumps([spec])]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        expected = np.load(Path(folder) / f"{name}.npz")
        encoder = pathology_encoders.build(name, expected["x"].shape[1:], depth)
        loaded = pretrained.load(encoder, Path(folder) / f"{name}.safetensors")
    features = np.asarray(encoder(expected["x"], training=False))
    errors = np.abs(features - expected["features"])
    return {
        "encoder": name,
        "blocks": depth,
        "tensors": loaded.tensors,
        "parameters": int(encoder.count_params()),
        "features": features.shape[1],
        "difference": float(errors.max() / np.abs(expected["features"]).max()),
    }


def main() -> None:
    arguments = parse_arguments()
    if len(arguments.encoders) > 1:  # a process for each, whose memory is given back
        for name in arguments.encoders:
            words = [sys.executable, __file__, "--encoders", name]
            words += ["--depth", str(arguments.depth)] if arguments.depth else []
            subprocess.run(words, check=True)
        return
    (name,) = arguments.encoders
    size = pathology_encoders.PATHOLOGY_ENCODERS[name].size
    print(report.line("encoder parity", [size, size, 3], **measure(name, arguments.depth)))


if __name__ == "__main__":
    main()
