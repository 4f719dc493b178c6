"""Initial weights of an encoder, as `--encoder-weights` asks, and the scale of pixels that belongs to them."""

from __future__ import annotations

import importlib
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from tfbig import SourceError
from tfbig.cli import load_model, paths
from tfbig.cli.settings.choices import IMAGENET, OF_THE_TILE, PUBLISHED, RANDOM
from tfbig.cli.settings.feature_settings import FeaturesSettings
from tfbig.cli.settings.patchgd_segmentation_settings import PatchGDSegmentationSettings
from tfbig.cli.settings.tasks import ImageSettings, MILSettings
from tfbig.cli.settings.yaml_flags import read_yaml
from tfbig.errors import reason_of
from tfbig.models import encoders, pretrained
from tfbig.models.pathology_encoders import PATHOLOGY_ENCODERS
from tfbig.results import run_folder

MODEL = "model.keras"
KERAS_FILE = ".keras"
WITHOUT_WEIGHTS = ("none", "series")
"""Values of `--encoder` that name no network with weights of its own."""

EncoderSettings: TypeAlias = MILSettings | ImageSettings | PatchGDSegmentationSettings
"""Settings of a task with an encoder."""
S = TypeVar("S", bound=EncoderSettings | FeaturesSettings)


def with_scale(settings: S) -> S:
    """Fill in the mean and standard deviation of the channels that the encoder expects.

    Without `--mean` and `--std` these are 0 and 1, or those that the weights of `--encoder-weights`, or those of an
    encoder of pathology, were trained with. `--encoder-weights random` becomes None, as without the flag.

    Raises:
        FlagError: There is no encoder, or the weights are those of a file, which does not say what they were trained
            with.
    """
    if settings.encoder_weights == RANDOM:
        settings = replace(settings, encoder_weights=None)
    weights = settings.encoder_weights
    if weights is not None and settings.encoder in WITHOUT_WEIGHTS:
        raise paths.FlagError(
            f"--encoder-weights {weights}: --encoder {settings.encoder} has no weights to start from. Use "
            "--encoder-weights random."
        )
    if settings.mean is not None and settings.std is not None:
        return settings
    if settings.encoder in PATHOLOGY_ENCODERS and not _is_run(weights):
        return _with_own_scale(settings)
    if weights is None or settings.encoder not in (*encoders.NETWORKS, *PATHOLOGY_ENCODERS):
        mean, std = settings.mean, settings.std
        return replace(
            settings, mean=0.0 if mean is None else mean, std=1.0 if std is None else std
        )
    if settings.mean is not None or settings.std is not None:
        given, other = ("mean", "std") if settings.std is None else ("std", "mean")
        raise paths.FlagError(
            f"--{given} needs --{other} with --encoder-weights. Give both, or none of them."
        )
    mean, std = _known_scale(weights)
    print(f"--mean {_shown(mean)} --std {_shown(std)}: those of --encoder-weights {weights}")
    return replace(settings, mean=mean, std=std)


def with_input(settings: MILSettings) -> MILSettings:
    """Fill in what an encoder of pathology reads, and say so if tiles become the input of the published weights.

    Runs of before, without the setting, read tiles as they are.
    """
    if settings.encoder not in PATHOLOGY_ENCODERS:
        return settings
    found = settings.encoder_input or _input_of(settings)
    if found == PUBLISHED:
        size = PATHOLOGY_ENCODERS[settings.encoder].size
        print(f"--encoder-input {found}: {settings.encoder} reads tiles of {size} x {size} pixels")
    return replace(settings, encoder_input=found)


def _input_of(settings: MILSettings) -> str:
    """The input of an encoder if no flag gives it: as in the run that is continued or whose weights are taken."""
    weights, out = settings.encoder_weights, Path(settings.out or "")
    if settings.test_only or (settings.resume and (out / run_folder.CONFIG).is_file()):
        return OF_THE_TILE
    if weights is None:
        return OF_THE_TILE
    if not _is_run(weights):
        return PUBLISHED
    saved = read_yaml(Path(weights) / run_folder.CONFIG)
    return saved.get("encoder_input") or OF_THE_TILE


def _with_own_scale(settings: S) -> S:
    """Fill in the mean and standard deviation of an encoder of pathology, where none are given."""
    entry = PATHOLOGY_ENCODERS[settings.encoder]
    mean = entry.mean if settings.mean is None else settings.mean
    std = entry.std if settings.std is None else settings.std
    print(f"--mean {_shown(mean)} --std {_shown(std)}: those of --encoder {settings.encoder}")
    return replace(settings, mean=mean, std=std)


def _is_run(weights: str | None) -> bool:
    """Tell whether weights are those of a run, whose settings say how its images were scaled."""
    return weights is not None and (Path(weights) / run_folder.CONFIG).is_file()


def _known_scale(weights: str) -> tuple[Any, Any]:
    """The mean and standard deviation that weights were trained with."""
    if weights == IMAGENET:
        return pretrained.IMAGENET_MEAN, pretrained.IMAGENET_STD
    config = Path(weights) / run_folder.CONFIG
    saved = read_yaml(config) if config.is_file() else {}
    if not {"mean", "std"} <= saved.keys():
        raise paths.FlagError(
            f"--encoder-weights {weights}: does not say how its images were scaled. Give --mean and --std: "
            f"--mean {_shown(pretrained.IMAGENET_MEAN)} --std {_shown(pretrained.IMAGENET_STD)} for most weights of "
            "torchvision and timm, --mean 0 --std 1 for pixels that were divided by 255 only."
        )
    mean, std = (tuple(n) if isinstance(n, list) else n for n in (saved["mean"], saved["std"]))
    return mean, std


def _shown(numbers: Any) -> str:
    """Write numbers as a flag holds them."""
    return " ".join(map(str, numbers if isinstance(numbers, tuple) else (numbers,)))


def load(encoder: Any, settings: EncoderSettings, is_trained: bool = True) -> None:
    """Load the weights of `--encoder-weights` into an encoder, or a model around it, and print what was loaded.

    A resumed run and an evaluation do not need them, since they load those of their run.

    Raises:
        SourceError: The weights cannot be fetched or read, or belong to another network.
    """
    weights = settings.encoder_weights
    if settings.test_only or _has_checkpoint(settings):
        return
    if weights is not None:
        load_file(encoder, settings.encoder, weights)
    elif not is_trained:
        warn_of_random(settings.encoder)


def warn_of_random(name: str) -> None:
    """Say on the error output that an encoder that is not trained has random weights."""
    print(
        f"without --encoder-weights, the weights of {name} are random, and so are its features",
        file=sys.stderr,
    )


def load_file(encoder: Any, name: str, weights: str) -> None:
    """Load weights into an encoder, or a model around it, and print what was loaded.

    `name` is that of the encoder, `weights` the value of `--encoder-weights`.

    Raises:
        SourceError: As `load`.
    """
    network = pretrained.find(encoder, name)
    assert network is not None
    path = file_of(name, weights)
    try:
        if path.suffix == KERAS_FILE:
            loaded = pretrained.copy(network, _trained(path, name, weights))
        else:
            loaded = pretrained.load(network, path)
    except (ValueError, FileNotFoundError) as error:
        text = str(error)
        shown = text if str(path) in text else f"{path}: {text}"
        raise SourceError(f"--encoder-weights {shown}") from error
    print(f"encoder weights {weights}: {loaded}")


def file_of(name: str, weights: str) -> Path:
    """Find the file of weights; published ones are fetched once.

    `name` is that of the encoder, `weights` the value of `--encoder-weights`.

    Raises:
        SourceError: They cannot be fetched.
    """
    path = Path(_fetched(name) if weights == IMAGENET else weights)
    return path / MODEL if path.is_dir() else path


def _has_checkpoint(settings: EncoderSettings) -> bool:
    """Tell whether the run continues from a checkpoint."""
    folder = Path(settings.out or "") / run_folder.CHECKPOINTS
    return settings.resume and any(folder.rglob("step-*"))


def _trained(path: Path, name: str, weights: str) -> Any:
    """Load the encoder of this name from the model of a file."""
    model = load_model.load(path)
    found = pretrained.find(model, name)
    if found is None:
        raise SourceError(
            f"--encoder-weights {weights}: its model has no encoder '{name}'. Use a run with --encoder {name}."
        )
    return found


def _fetched(name: str) -> str:
    """Find the file of the published weights of a network, which is fetched once.

    Raises:
        SourceError: There are none, or they cannot be fetched.
    """
    if name in PATHOLOGY_ENCODERS:
        raise paths.FlagError(
            f"--encoder-weights imagenet: --encoder {name} was trained on slides. Request its weights at "
            f"https://huggingface.co/{PATHOLOGY_ENCODERS[name].repository}, and give the path of the file."
        )
    if name not in pretrained.IMAGENET:
        raise paths.FlagError(
            f"--encoder-weights imagenet: there are no published weights of --encoder {name}, but of "
            f"{', '.join(pretrained.IMAGENET)}. Use one of these, or --encoder-weights random or FILE."
        )
    repository, file = pretrained.IMAGENET[name], "model.safetensors"
    try:
        hub = importlib.import_module("huggingface_hub")
    except ImportError as error:
        raise SourceError(
            "--encoder-weights imagenet: needs huggingface_hub to fetch the weights. Run pip install 'tfbig[hub]', or "
            "give a file with torchvision's weights."
        ) from error
    hub.logging.set_verbosity_error()  # else it prints a line for each attempt
    try:
        path: str = hub.hf_hub_download(repository, file, token=False)
    except Exception as error:  # errors of networks, and of the client
        reason = reason_of(error)
        raise SourceError(
            f"--encoder-weights imagenet: {file} of {repository} cannot be fetched ({type(error).__name__}: {reason}). "
            f"On a machine with a network, run: hf download {repository} {file}; copy the file here, and give its path "
            f"with --mean {_shown(pretrained.IMAGENET_MEAN)} --std {_shown(pretrained.IMAGENET_STD)}."
        ) from error
    return path
