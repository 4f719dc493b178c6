"""Encoders of `tfbig features`: what each gives and expects, and where to get its weights."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from tfbig.cli.data.tile_selection import MPP, TILE
from tfbig.cli.settings import choices
from tfbig.models import pretrained
from tfbig.models.pathology_encoders import PATHOLOGY_ENCODERS

BSD, APACHE = "BSD-3-Clause", "Apache-2.0"


class Row(NamedTuple):
    """A line of the list.

    Attributes:
        name: Name of the encoder, as `--encoder` expects it.
        width: Number of features of a tile.
        tile: Rows and columns of a tile.
        mpp: Micrometres per pixel of a tile.
        mean: Mean of the channels divided by 255, which is subtracted.
        std: Standard deviation of the channels divided by 255.
        parameters: Number of parameters.
        licence: Licence of the weights, or "" if none are published.
        weights: Name of the published model, or "".
    """

    name: str
    width: int
    tile: int
    mpp: float
    mean: tuple[float, ...]
    std: tuple[float, ...]
    parameters: int
    licence: str
    weights: str


_WIDTH_AND_PARAMETERS: Final = {
    "resnet18": (512, 11_186_112),
    "resnet34": (512, 21_301_696),
    "resnet50": (2048, 23_561_152),
    "resnet18_gn": (512, 11_176_512),
    "resnet50_gn": (2048, 23_508_032),
    "resnet26": (2048, 13_977_024),
    "mobilenetv2": (1280, 2_257_984),
}
"""Features and parameters of networks of ImageNet, moving statistics of BatchNormalization included."""


def rows() -> list[Row]:
    """A row for every encoder."""
    return [*map(_of_imagenet, _WIDTH_AND_PARAMETERS), *map(_of_pathology, PATHOLOGY_ENCODERS)]


def _of_imagenet(name: str) -> Row:
    weights = pretrained.IMAGENET.get(name, "")
    licence = (BSD if ".tv_" in weights else APACHE) if weights else ""
    mean, std = pretrained.IMAGENET_MEAN, pretrained.IMAGENET_STD
    width, parameters = _WIDTH_AND_PARAMETERS[name]
    return Row(name, width, TILE, MPP, mean, std, parameters, licence, weights)


def _of_pathology(name: str) -> Row:
    entry = PATHOLOGY_ENCODERS[name]
    return Row(
        name,
        entry.width,
        entry.tile,
        entry.mpp,
        entry.mean,
        entry.std,
        entry.parameters,
        entry.licence,
        entry.repository,
    )


def lines() -> Iterator[str]:
    """Yield the lines of the list: a table, and what to do with it."""
    head = (
        "encoder",
        "features",
        "tile",
        "um/px",
        "mean",
        "std",
        "parameters",
        "weights",
        "licence",
    )
    cells = [head, *map(_cells, rows())]
    widths = [max(len(row[column]) for row in cells) for column in range(len(head))]
    for row in cells:
        padded = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield "  ".join(padded).rstrip()
    yield ""
    yield (
        "Weights of pathology encoders are requested and downloaded at https://huggingface.co/NAME: give the "
        "model.safetensors or pytorch_model.bin with --encoder-weights FILE. Licences are those of the model cards; "
        "check them there. --encoder-weights imagenet fetches weights of the names timm/... once."
    )


def _cells(row: Row) -> tuple[str, ...]:
    mean, std = (" ".join(f"{number:.3f}" for number in scale) for scale in (row.mean, row.std))
    millions = f"{row.parameters / 1e6:.1f} M"
    numbers = str(row.width), str(row.tile), f"{row.mpp:g}", mean, std, millions
    return row.name, *numbers, row.weights or "none published", row.licence or "-"


def summary() -> str:
    """Describe the encoders in a line, for `tfbig doctor`."""
    return (
        f"encoders for tfbig features: {len(choices.FEATURE_ENCODERS)}; their weights are not part of tfbig, tfbig "
        "features --list says where they are had"
    )
