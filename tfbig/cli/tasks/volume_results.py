"""Results of a volume of `--task volume-segmentation`: its mask, Dice of each class, and pictures."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tfbig.cli import volume_masks
from tfbig.cli.data.prepared_volumes import Preparation
from tfbig.cli.data.volume_cases import LabelledVolume
from tfbig.results import volume_figures, volume_montage
from tfbig.system.output_folder import file_in, part_prefix


def evaluate(
    model: Any,
    volume: LabelledVolume,
    preparation: Preparation,
    classes: Sequence[str],
    folder: Path,
    drawn: bool,
) -> dict[str, Any]:
    """Predict a volume, draw it, and return a row with Dice of each class, on the grid of the file.

    Args:
        model: Model of the run, streamed or plain.
        volume: The volume.
        preparation: How the network reads volumes.
        classes: Names of the classes.
        folder: Run folder.
        drawn: Whether to draw it.
    """
    with tempfile.TemporaryDirectory(prefix=part_prefix(), dir=folder) as scratch:
        mask = volume_masks.predict(model, volume.stored, preparation, Path(scratch) / "mask.npy")
        shares = volume_masks.compared(volume.stored_labels, mask, len(classes)).dice()
        known = [share for share in shares[1:] if share is not None]
        mean = float(np.mean(known)) if known else None
        if drawn:
            result = "nothing labelled or found" if mean is None else f"Dice {mean:.4f}"
            title = f"{volume.name}: {result}"
            masks = {"labels": volume.stored_labels, "prediction": mask}
            shown = volume.stored, masks, classes, title
            volume_figures.planes(file_in(folder, f"{volume.name}.png"), *shown)
            volume_montage.write_view(folder, volume.name, *shown)
    named = zip(classes[1:], shares[1:], strict=True)
    return {"volume": volume.name, "dice": mean, **{f"dice_{name}": s for name, s in named}}
