"""Write vision transformers of timm and transformers with random weights, and their features, to a folder.

A process of its own, because TensorFlow and torch crash in one process. Networks of transformers and the pooling of
CONCH are stated here, so that these libraries need not be installed.

Usage: python torch_transformers.py FOLDER JSON, with a list of objects of `name`, the file; `network`, a key of
`NETWORKS`, or of `options` of `timm.create_model`; `depth`; `size`, rows and columns of the images; and `stored`, rows
and columns that position embeddings of the file have, if they are others.
"""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import timm
import torch
from safetensors.torch import save_file
from timm.layers import SwiGLUPacked
from timm.models.vision_transformer import checkpoint_filter_fn
from torch import nn
from torch.nn import functional

Tensors: TypeAlias = dict[str, torch.Tensor]

SWIGLU = {"mlp_layer": SwiGLUPacked, "act_layer": nn.SiLU}
SCALE = {"init_values": 1e-5}
HUGE = {"model_name": "vit_huge_patch14_224", "mlp_ratio": 5.3375, "global_pool": "", **SCALE}
OPTIMUS = {"model_name": "vit_giant_patch14_reg4_dinov2", "global_pool": "token", **SCALE}
NETWORKS: dict[str, dict[str, Any]] = {
    "uni": {"model_name": "vit_large_patch16_224", **SCALE},
    "uni2-h": {
        "model_name": "vit_giant_patch14_224",
        "patch_size": 14,
        "num_heads": 24,
        "embed_dim": 1536,
        "mlp_ratio": 2.66667 * 2,
        "no_embed_class": True,
        "reg_tokens": 8,
        **SCALE,
        **SWIGLU,
    },
    "virchow": {**HUGE, **SWIGLU},
    "virchow2": {**HUGE, **SWIGLU, "reg_tokens": 4},
    "h-optimus-0": OPTIMUS,
    "h-optimus-1": OPTIMUS,
    "prov-gigapath": {
        "model_name": "vit_giant_patch14_dinov2",
        "patch_size": 16,
        "embed_dim": 1536,
        "num_heads": 24,
        "mlp_ratio": 5.33334,
    },
    "conch-1.5": {"model_name": "vit_large_patch16_224", "init_values": 1.0, "global_pool": ""},
}
"""Options of `timm.create_model`, as model cards have them."""
TRANSFORMERS = {"phikon": (768, 12, False, 1e-12), "phikon-v2": (1024, 16, True, 1e-6)}
"""Networks of transformers: width, heads, whether it is a Dinov2Model, and epsilon."""
IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
SCALES = dict.fromkeys(
    ("h-optimus-0", "h-optimus-1"), ((0.707223, 0.578729, 0.703617), (0.211883, 0.230117, 0.177517))
)
VIRCHOW = {"virchow": 1, "virchow2": 5}
"""First token of a patch."""
PATCH = 16
"""Patch of the networks of transformers and of CONCH."""


def randomise(tensors: Tensors) -> Tensors:
    """Fill tensors in place such that all of them matter, and return them."""
    for key, tensor in tensors.items():
        if tensor.ndim == 1:
            around_one = key.endswith(("weight", "gamma", "lambda1"))
            tensor.uniform_(0.5, 1.5) if around_one else tensor.normal_(0, 0.2)
        else:
            tensor.normal_(0, 1 if "token" in key or "pos" in key else tensor[0].numel() ** -0.5)
    return tensors


def timm_network(size: tuple[int, int], **options: Any) -> nn.Module:
    """Return a network of timm with uninitialised weights."""
    with torch.device("meta"):
        net = timm.create_model(img_size=size, num_classes=0, **options)
    return net.to_empty(device="cpu").eval()


def in_float64(net: nn.Module) -> nn.Module:
    """Return a network that computes in float64, with one layer at a time in float64, for large networks."""

    def widen(layer: nn.Module, _: Any) -> None:
        layer.kept = [parameter.data for parameter in layer.parameters()]
        layer.double()

    def narrow(layer: nn.Module, *_: Any) -> None:
        for parameter, kept in zip(layer.parameters(), layer.kept, strict=True):
            parameter.data = kept

    for layer in net.modules():
        if isinstance(layer, nn.Linear | nn.LayerNorm | nn.Conv2d):
            layer.register_forward_pre_hook(widen)
            layer.register_forward_hook(narrow)
    return net


def linear(x: torch.Tensor, tensors: Tensors, key: str) -> torch.Tensor:
    return functional.linear(x, tensors[f"{key}.weight"], tensors.get(f"{key}.bias"))


def normalised(x: torch.Tensor, tensors: Tensors, key: str, epsilon: float) -> torch.Tensor:
    weight, bias = tensors[f"{key}.weight"], tensors[f"{key}.bias"]
    return functional.layer_norm(x, weight.shape, weight, bias, epsilon)


def attended(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, heads: int) -> torch.Tensor:
    """Return softmax attention of `[N, n, width]` with several heads."""
    q, k, v = (x.unflatten(-1, (heads, -1)).transpose(1, 2) for x in (q, k, v))
    weights = (q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5).softmax(-1)
    return (weights @ v).transpose(1, 2).flatten(2)


def transformers_shapes(width: int, dino: bool, depth: int, patches: int) -> dict[str, Any]:
    """Return the shapes of the tensors of a ViTModel or a Dinov2Model by their names."""
    shapes: dict[str, Any] = {
        "embeddings.cls_token": (1, 1, width),
        "embeddings.position_embeddings": (1, 1 + patches, width),
        "embeddings.patch_embeddings.projection.weight": (width, 3, PATCH, PATCH),
        "embeddings.patch_embeddings.projection.bias": (width,),
        **{f"layernorm.{part}": (width,) for part in ("weight", "bias")},
    }
    if dino:
        shapes["embeddings.mask_token"] = (1, width)
    else:
        shapes |= {"pooler.dense.weight": (width, width), "pooler.dense.bias": (width,)}
    norms = ("norm1", "norm2") if dino else ("layernorm_before", "layernorm_after")
    first, last = ("mlp.fc1", "mlp.fc2") if dino else ("intermediate.dense", "output.dense")
    parts = [f"attention.attention.{part}" for part in ("query", "key", "value")]
    for block in (f"encoder.layer.{i}" for i in range(depth)):
        for key in (*parts, "attention.output.dense"):
            shapes |= {f"{block}.{key}.weight": (width, width), f"{block}.{key}.bias": (width,)}
        for key in norms:
            shapes |= {f"{block}.{key}.{part}": (width,) for part in ("weight", "bias")}
        for key, out, into in ((first, 4 * width, width), (last, width, 4 * width)):
            shapes |= {f"{block}.{key}.weight": (out, into), f"{block}.{key}.bias": (out,)}
        if dino:
            shapes |= {f"{block}.layer_scale{i}.lambda1": (width,) for i in (1, 2)}
    return shapes


def transformers_features(
    tensors: Tensors, x: torch.Tensor, heads: int, epsilon: float
) -> torch.Tensor:
    """Return the class token after the last normalisation, as ViTModel and Dinov2Model do."""
    kernel, bias = (
        tensors[f"embeddings.patch_embeddings.projection.{part}"] for part in ("weight", "bias")
    )
    x = functional.conv2d(x, kernel, bias, stride=PATCH).flatten(2).transpose(1, 2)
    x = torch.cat([tensors["embeddings.cls_token"].expand(len(x), -1, -1), x], 1)
    x = x + tensors["embeddings.position_embeddings"]
    dino = "embeddings.mask_token" in tensors
    norms = ("norm1", "norm2") if dino else ("layernorm_before", "layernorm_after")
    first, last = ("mlp.fc1", "mlp.fc2") if dino else ("intermediate.dense", "output.dense")
    block = 0
    while f"encoder.layer.{block}.{norms[0]}.weight" in tensors:
        name = f"encoder.layer.{block}"
        scales = [tensors.get(f"{name}.layer_scale{i}.lambda1", torch.ones(())) for i in (1, 2)]
        y = normalised(x, tensors, f"{name}.{norms[0]}", epsilon)
        parts = [
            linear(y, tensors, f"{name}.attention.attention.{p}") for p in ("query", "key", "value")
        ]
        y = linear(attended(*parts, heads), tensors, f"{name}.attention.output.dense")
        x = x + scales[0] * y
        y = functional.gelu(
            linear(
                normalised(x, tensors, f"{name}.{norms[1]}", epsilon), tensors, f"{name}.{first}"
            )
        )
        x = x + scales[1] * linear(y, tensors, f"{name}.{last}")
        block += 1
    return normalised(x, tensors, "layernorm", epsilon)[:, 0]


def conch_shapes() -> dict[str, Any]:
    """Return the shapes of the tensors of CONCH after its vision transformer."""
    pool = "attn_pool_contrast"
    norms = {f"{pool}.ln_k": 1024, f"{pool}.ln_q": 768, "ln_contrast": 768}
    return {
        **{f"{key}.{part}": (n,) for key, n in norms.items() for part in ("weight", "bias")},
        f"{pool}.query": (1, 768),
        f"{pool}.to_q.weight": (768, 768),
        f"{pool}.to_kv.weight": (1536, 1024),
        f"{pool}.to_out.weight": (768, 768),
    }


def conch_features(tensors: Tensors, x: torch.Tensor) -> torch.Tensor:
    """Return the features of tokens, as CONCH computes them."""
    pool = "attn_pool_contrast"
    keys = linear(normalised(x, tensors, f"{pool}.ln_k", 1e-5), tensors, f"{pool}.to_kv")
    query = normalised(tensors[f"{pool}.query"], tensors, f"{pool}.ln_q", 1e-5)
    query = linear(query, tensors, f"{pool}.to_q").expand(len(x), -1, -1)
    x = linear(attended(query, *keys.chunk(2, -1), 8), tensors, f"{pool}.to_out")[:, 0]
    return normalised(x, tensors, "ln_contrast", 1e-5)


def stretched(positions: torch.Tensor, grid: tuple[int, int]) -> torch.Tensor:
    """Return position embeddings for a grid, as the code of CONCH computes them."""
    side = int((positions.shape[1] - 1) ** 0.5)
    patches = positions[:, 1:].unflatten(1, (side, side)).permute(0, 3, 1, 2)
    factor = tuple((n + 0.1) / side for n in grid)
    patches = functional.interpolate(patches, scale_factor=factor, mode="bicubic")
    return torch.cat([positions[:, :1], patches.flatten(2).transpose(1, 2)], 1)


def of_transformers(name: str, depth: int, seen: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    """Return the tensors and the features of a network of transformers."""
    width, heads, dino, epsilon = TRANSFORMERS[name]
    patches = (seen.shape[2] // PATCH) * (seen.shape[3] // PATCH)
    shapes = transformers_shapes(width, dino, depth, patches)
    tensors = randomise({key: torch.empty(shape) for key, shape in shapes.items()})
    wide = {key: tensor.double() for key, tensor in tensors.items()}
    return tensors, transformers_features(wide, seen, heads, epsilon)


def of_timm(
    options: dict[str, Any], stored: tuple[int, int], seen: torch.Tensor
) -> tuple[Tensors, torch.Tensor]:
    """Return the tensors of a network of timm, with positions for images of the size `stored`, and its outputs."""
    net = timm_network(stored, **options)
    tensors = randomise(net.state_dict())
    if stored != seen.shape[2:]:
        net = timm_network(tuple(seen.shape[2:]), **options)
        net.load_state_dict(checkpoint_filter_fn(dict(tensors), net))
    return tensors, in_float64(net)(seen)


def of_conch(
    depth: int, stored: tuple[int, int], seen: torch.Tensor
) -> tuple[Tensors, torch.Tensor]:
    """Return the tensors and the features of CONCH, with positions for images of the size `stored`."""
    options = NETWORKS["conch-1.5"] | {"depth": depth}
    net = timm_network(tuple(seen.shape[2:]), **options)
    trunk = randomise(timm_network(stored, **options).state_dict())
    grid = (seen.shape[2] // PATCH, seen.shape[3] // PATCH)
    net.load_state_dict(trunk | {"pos_embed": stretched(trunk["pos_embed"], grid)})
    pool = randomise({key: torch.empty(shape) for key, shape in conch_shapes().items()})
    wide = {key: tensor.double() for key, tensor in pool.items()}
    features = conch_features(wide, in_float64(net)(seen))
    return {f"trunk.{key}": tensor for key, tensor in trunk.items()} | pool, features


def timm_options(spec: dict[str, Any]) -> dict[str, Any]:
    """Return the options of `timm.create_model` for a network."""
    options = dict(NETWORKS[spec["network"]] if "network" in spec else spec["options"])
    if options.pop("swiglu", False):
        options |= SWIGLU
    if "eps" in options:
        options["norm_layer"] = partial(nn.LayerNorm, eps=options.pop("eps"))
    return options | {"depth": spec["depth"]}


def write(folder: Path, spec: dict[str, Any]) -> None:
    """Write `name.safetensors` and `name.npz`: `x` from 0 to 255, `[N, H, W, 3]`, and its features in float64.

    The features of Virchow are made of its tokens, as its model card says.
    """
    torch.manual_seed(0)
    name, network, depth = spec["name"], spec.get("network"), spec["depth"]
    x = torch.randint(0, 256, (2, 3, *spec["size"])).double()
    mean, std = (
        torch.tensor(n, dtype=x.dtype)[:, None, None] for n in SCALES.get(network, IMAGENET)
    )
    seen, stored = (x / 255 - mean) / std, tuple(spec.get("stored", spec["size"]))
    if network in TRANSFORMERS:
        tensors, features = of_transformers(network, depth, seen)
    elif network == "conch-1.5":
        tensors, features = of_conch(depth, stored, seen)
    else:
        tensors, features = of_timm(timm_options(spec), stored, seen)
        if network in VIRCHOW:
            patches = features[:, VIRCHOW[network] :].mean(1)
            features = torch.cat([features[:, 0], patches], 1)
    save_file(tensors, folder / f"{name}.safetensors")
    if spec.get("bin"):
        torch.save(tensors, folder / f"{name}.bin")
    pixels = x.permute(0, 2, 3, 1).float()
    np.savez(folder / f"{name}.npz", x=pixels.numpy(), features=features.numpy())


if __name__ == "__main__":
    out, specs = sys.argv[1:]
    torch.set_num_threads(1)
    with torch.no_grad():
        for each in json.loads(specs):
            write(Path(out), each)
