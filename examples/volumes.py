"""Write volumes of drawn tubes in the layout of nnU-Net, whose labels need more context than a crop shows.

    python examples/volumes.py tubes
    tfbig dataset nnunet tubes

Every volume holds two parallel tubes of the same brightness. One of them begins with a bright bead: it is an artery,
the
other one a vein. Far from the bead nothing tells them apart, so a crop that does not reach it cannot be labelled.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tfbig import sources

CLASSES = {"background": 0, "artery": 1, "vein": 2}
SPACING = (1.5, 0.8, 0.8)
RADIUS, BEAD = 2.5, 4.0
"""Radius of a tube and of a bead, in voxels."""


def main(argv: Sequence[str] | None = None) -> None:
    """Write the volumes that the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", help="folder of the data set; created if needed")
    parser.add_argument("--cases", type=int, default=30, help="number of volumes (default: 30)")
    parser.add_argument(
        "--size", type=int, nargs=3, default=(64, 32, 32), metavar="N", help="voxels"
    )
    parser.add_argument("--seed", type=int, default=0, help="random seed")
    options = parser.parse_args(argv)
    write(Path(options.folder), options.cases, tuple(options.size), options.seed)
    print(f"{options.cases} volumes in {options.folder}")


def write(folder: Path, cases: int, size: tuple[int, ...], seed: int = 0) -> None:
    """Write volumes, their labels and `dataset.json`.

    Args:
        folder: Folder of the data set.
        cases: Number of volumes.
        size: Planes, rows and columns.
        seed: Random seed.
    """
    for name in ("imagesTr", "labelsTr"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    affine = np.diag([*reversed(SPACING), 1.0])[
        :, [2, 1, 0, 3]
    ]  # columns to the right, planes to the top
    grid = sources.VoxelGrid.of_affine(affine)
    for case in range(cases):
        image, labels = draw(size, np.random.default_rng([seed, case]))
        for kind, array, end in (("imagesTr", image, "_0000"), ("labelsTr", labels, "")):
            path = folder / kind / f"tubes_{case:03}{end}.nii.gz"
            sources.write_nifti(path, sources.ArrayVolume(array, path.name, grid))
    about = {
        "channel_names": {"0": "CT"},
        "labels": CLASSES,
        "numTraining": cases,
        "file_ending": ".nii.gz",
    }
    (folder / "dataset.json").write_text(json.dumps(about, indent=2))


def draw(
    size: tuple[int, ...], rng: np.random.Generator
) -> tuple[npt.NDArray[np.int16], npt.NDArray[np.uint8]]:
    """Return a volume and its labels, both `[planes, rows, columns]`.

    Args:
        size: Planes, rows and columns.
        rng: Random numbers.
    """
    planes, rows, columns = size
    along = np.arange(planes) / planes
    image = rng.normal(40, 20, size)
    labels = np.zeros(size, np.uint8)
    sides = rng.permutation([-1, 1])
    phase, sway = rng.uniform(0, 2 * np.pi), 0.06 * columns
    for label, side in enumerate(sides, 1):
        centre_row = rows / 2 + sway * np.sin(2 * np.pi * along + phase)
        centre_column = columns * (0.5 + 0.22 * side) + sway * np.cos(2 * np.pi * along + phase)
        down = np.arange(rows)[:, None] - centre_row[:, None, None]
        across = np.arange(columns) - centre_column[:, None, None]
        tube = down**2 + across**2 <= RADIUS**2
        labels[tube] = label
        image[tube] += 150
        if label == CLASSES["artery"]:
            depth = np.arange(planes)[:, None, None] - BEAD
            ball = depth**2 + (down[4:5]) ** 2 + (across[4:5]) ** 2 <= BEAD**2
            image[ball], labels[ball] = image[ball] + 250, label
    return np.rint(image).astype(np.int16), labels


if __name__ == "__main__":
    main()
