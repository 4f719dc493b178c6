"""Encoders of tiles that were trained on pathology slides: their networks, and what their weights expect.

The weights are those of the repositories on huggingface.co; most must be requested there, and have licences of their
own. `tfbig.models.pretrained.load` reads the downloaded `model.safetensors` or `pytorch_model.bin`.

Sources: `trident/patch_encoder_models/load.py` and `model_zoo/conchv1_5` of TRIDENT (github.com/mahmoodlab/TRIDENT) for
networks, sizes and normalisation; timm 1.0.31 and transformers for what these leave to defaults; `encoders/models` of
slide2vec (github.com/clemsgrs/slide2vec) for micrometres per pixel; `models` of LazySlide
(github.com/rendeirolab/LazySlide) for licences, to be checked with the repository. A tile is resized and cut as by
the class in `trident/patch_encoder_models/load.py` that `Preprocessing.source` names.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import keras

from tfbig.models.scaling import scaled
from tfbig.models.vision_transformer import ViT, attention_pool, vision_transformer

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
OPTIMUS_MEAN, OPTIMUS_STD = (0.707223, 0.578729, 0.703617), (0.211883, 0.230117, 0.177517)

NON_COMMERCIAL = "CC-BY-NC-ND-4.0"
APACHE = "Apache-2.0"
OWKIN = "Owkin non-commercial licence"

LARGE = ViT(patch=16, width=1024, depth=24, heads=16, layer_scale=1e-5)
HUGE = ViT(
    patch=14,
    width=1280,
    depth=32,
    heads=16,
    mlp_ratio=5.3375,
    mlp="swiglu",
    layer_scale=1e-5,
    pooling="token_mean",
)
GIANT = ViT(
    patch=14,
    width=1536,
    depth=40,
    heads=24,
    mlp_ratio=2.66667 * 2,
    mlp="swiglu",
    layer_scale=1e-5,
)
OPTIMUS = replace(GIANT, registers=4, prefix_positions=False)


@dataclass(frozen=True)
class Preprocessing:
    """The steps from a tile to the input of an encoder, before its channels are normalised.

    Attributes:
        interpolation: Filter of Pillow by which a tile of another size is resized.
        shorter: Length of the shorter side after that, of which the middle is cut out; by default that of the input.
        stretched: Whether instead both sides are resized to the input, and nothing is cut off.
        source: Class of TRIDENT that does the same; empty if nothing is published.
    """

    interpolation: Literal["bilinear", "bicubic"] = "bilinear"
    shorter: int | None = None
    stretched: bool = False
    source: str = ""


@dataclass(frozen=True)
class PathologyEncoder:
    """The published facts of an encoder.

    Attributes:
        repository: Repository of the weights on huggingface.co.
        licence: Licence of the weights, as their model card names it.
        network: Configuration of the vision transformer.
        parameters: Number of parameters of the weights, without tokens that stand for masked patches.
        size: Rows and columns of the input in pixels.
        mpp: Micrometres per pixel of the tiles.
        mean: Mean of the channels divided by 255, which is subtracted.
        std: Standard deviation of the channels divided by 255, by which they are divided.
        attention_pool: Width and heads of an attention pool over all tokens, or None.
        preprocessing: How a tile becomes `size` rows and columns.
    """

    repository: str
    licence: str
    network: ViT
    parameters: int
    size: int = 224
    mpp: float = 0.5
    mean: tuple[float, float, float] = IMAGENET_MEAN
    std: tuple[float, float, float] = IMAGENET_STD
    attention_pool: tuple[int, int] | None = None
    preprocessing: Preprocessing = Preprocessing()

    @property
    def tile(self) -> int:
        """Rows and columns of the tiles that are resized least: these are cut, or used as they are."""
        return self.preprocessing.shorter or self.size

    @property
    def width(self) -> int:
        """Number of features of a tile."""
        return self.attention_pool[0] if self.attention_pool else self.network.features


PATHOLOGY_ENCODERS = {
    "uni": PathologyEncoder(
        "MahmoodLab/UNI",
        NON_COMMERCIAL,
        LARGE,
        303_350_784,
        preprocessing=Preprocessing(source="UNIInferenceEncoder"),
    ),
    "uni2-h": PathologyEncoder(
        "MahmoodLab/UNI2-h",
        NON_COMMERCIAL,
        replace(GIANT, depth=24, registers=8, prefix_positions=False),
        681_394_176,
        preprocessing=Preprocessing(source="UNIv2InferenceEncoder"),
    ),
    "virchow": PathologyEncoder(
        "paige-ai/Virchow",
        APACHE,
        HUGE,
        631_229_184,
        preprocessing=Preprocessing("bicubic", source="VirchowInferenceEncoder"),
    ),
    # Trained at 0.25, 0.5, 1 and 2 micrometres per pixel.
    "virchow2": PathologyEncoder(
        "paige-ai/Virchow2",
        NON_COMMERCIAL,
        replace(HUGE, registers=4),
        631_239_424,
        preprocessing=Preprocessing("bicubic", source="Virchow2InferenceEncoder"),
    ),
    "h-optimus-0": PathologyEncoder(
        "bioptimus/H-optimus-0",
        APACHE,
        OPTIMUS,
        1_134_774_272,
        mean=OPTIMUS_MEAN,
        std=OPTIMUS_STD,
        preprocessing=Preprocessing(source="HOptimus0InferenceEncoder"),
    ),
    "h-optimus-1": PathologyEncoder(
        "bioptimus/H-optimus-1",
        NON_COMMERCIAL,
        OPTIMUS,
        1_134_774_272,
        mean=OPTIMUS_MEAN,
        std=OPTIMUS_STD,
        preprocessing=Preprocessing(source="HOptimus1InferenceEncoder"),
    ),
    # Its authors cut tiles of 256 pixels and encode the central 224 of each.
    "prov-gigapath": PathologyEncoder(
        "prov-gigapath/prov-gigapath",
        f"{APACHE} with conditions",
        replace(GIANT, patch=16),
        1_134_953_984,
        preprocessing=Preprocessing("bicubic", shorter=256, source="GigaPathInferenceEncoder"),
    ),
    "phikon": PathologyEncoder(
        "owkin/phikon",
        OWKIN,
        ViT(patch=16, width=768, depth=12, heads=12, epsilon=1e-12, resampling=None),
        85_798_656,
        preprocessing=Preprocessing(stretched=True, source="PhikonInferenceEncoder"),
    ),
    "phikon-v2": PathologyEncoder(
        "owkin/phikon-v2",
        OWKIN,
        replace(LARGE, layer_scale=1.0, resampling=None),
        303_350_784,
        preprocessing=Preprocessing(source="Phikonv2InferenceEncoder"),
    ),
    # The vision tower of TITAN, before the projection that it shares with text.
    "conch-1.5": PathologyEncoder(
        "MahmoodLab/conchv1_5",
        NON_COMMERCIAL,
        replace(LARGE, layer_scale=1.0, pooling=None, resampling="stretched"),
        306_109_184,
        size=448,
        attention_pool=(768, 8),
        preprocessing=Preprocessing(source="Conchv15InferenceEncoder"),
    ),
}
"""Encoders by name."""


def build(
    name: str,
    shape: Sequence[int | None] | None = None,
    depth: int | None = None,
    mean: float | Sequence[float] | None = None,
    std: float | Sequence[float] | None = None,
) -> keras.Model:
    """Build an encoder of pathology tiles with its normalisation, and random weights.

    Args:
        name: Name in `PATHOLOGY_ENCODERS`.
        shape: `(H, W, 3)` of a tile, with H and W multiples of the patch; by default those of the weights. For another
            size, `tfbig.models.pretrained.load` adapts position embeddings as timm does; those of Phikon are refused.
        depth: Number of blocks; by default that of the weights.
        mean: Mean of the channels divided by 255; by default that of the weights.
        std: Standard deviation of the channels divided by 255; by default that of the weights.

    Returns:
        A plain `keras.Model` from tiles `[N, H, W, 3]` of values 0 to 255 to features `[N, width]`.

    Raises:
        ValueError: The name is unknown, or a tile has another number of channels or an unknown or unsuitable size.
    """
    entry = find(name)
    shape = (entry.size, entry.size, 3) if shape is None else tuple(shape)
    scale = (entry.mean if mean is None else mean, entry.std if std is None else std)
    return scaled(network(name, shape, depth), shape, *scale)


def find(name: str) -> PathologyEncoder:
    """Look up what is published of an encoder.

    Raises:
        ValueError: The name is unknown.
    """
    if name not in PATHOLOGY_ENCODERS:
        raise ValueError(f"name={name!r}: expected one of {', '.join(PATHOLOGY_ENCODERS)}.")
    return PATHOLOGY_ENCODERS[name]


def network(name: str, shape: Sequence[int | None], depth: int | None = None) -> keras.Model:
    """Build an encoder without its normalisation.

    Args:
        name: Name in `PATHOLOGY_ENCODERS`.
        shape: `(H, W, 3)` of a tile, see `build`.
        depth: Number of blocks; by default that of the weights.

    Returns:
        A plain `keras.Model` from normalised tiles `[N, H, W, 3]` to features `[N, width]`.

    Raises:
        ValueError: As `build`.
    """
    entry = find(name)
    if len(shape) != 3 or shape[-1] != 3:
        raise ValueError(
            f"shape={tuple(shape)}: '{name}' expects tiles (H, W, 3) of three channels."
        )
    config = entry.network if depth is None else replace(entry.network, depth=depth)
    model = vision_transformer(shape, config, name=name)
    if entry.attention_pool is None:
        return model
    return keras.Model(model.input, attention_pool(model.output, *entry.attention_pool), name=name)
