"""Command line of `train.py`: flags, `--config` files, and the settings of a run that is resumed."""

import argparse
from pathlib import Path

import yaml

from models.gigapixel_unet import STRIDE
from tfbig import runfolder
from tfbig.budget import parse_bytes

_DATA = Path(__file__).parent.parent / "examples" / "data"
_NOT_SAVED = ("config", "resume", "dry_run")


def parse(argv):
    """Settings from flags, over `--config`, over those of the resumed run, over the defaults."""
    argv = [_dashed(token) for token in argv]
    first = _parser().parse_args(argv)
    if first.resume and first.out is None:
        _parser().error("--resume continues a run: say which with --out FOLDER")
    files = [Path(first.out) / runfolder.CONFIG] if first.resume else []
    files += [first.config] if first.config else []
    tokens = [token for file in files for token in _read(file)]
    return _parser().parse_args([*tokens, *argv])


def to_save(settings):
    """What `config.yaml` of the run holds; `--config` takes it back."""
    return {key: value for key, value in vars(settings).items() if key not in _NOT_SAVED}


def crop_size(text):
    """`"1024x2048"` as `(1024, 2048)`."""
    rows, columns = (int(side) for side in text.split("x"))
    return rows, columns


def _parser():
    parser = argparse.ArgumentParser(
        prog="train.py",
        description="Trains the gigapixel U-Net to tell tissue from background on whole slides.",
        epilog="Example: python train.py --mode offload --data my_slides --crop 16000x64000 "
        "--device-memory 1GB --epochs 20 --out runs/mine",
        allow_abbrev=False,
    )
    groups = {
        "data": _add_data,
        "training": _add_training,
        "machine": _add_machine,
        "run": _add_run,
    }
    for title, add_flags in groups.items():
        add_flags(parser.add_argument_group(title).add_argument)
    return parser


def _add_data(add):
    add(
        "--mode",
        choices=["offload", "device"],
        default="offload",
        help="offload: strip by strip, images stay in host memory or on disk; device: plain Keras "
        "with whole crops, on the same data with the same seed (default: %(default)s)",
    )
    add(
        "--data",
        default=str(_DATA),
        metavar="FOLDER",
        help="folder of slides (TIFF, SVS, NDPI, NPY, PNG); the last by name is never trained on, "
        "it validates. A slide a.tif takes its labels from masks/a.* in the folder if there is "
        "one, else they are made from the slide (default: the slides in examples/data)",
    )
    add(
        "--crops",
        type=_count,
        default=100,
        help="random crops of the training slides, all seen once an epoch, in the same order "
        "(default: %(default)s)",
    )
    add(
        "--crop",
        type=_crop,
        default="1024x1024",
        metavar="HxW",
        help=f"rows x columns of a crop, multiples of {STRIDE}; validation is on the whole slide "
        "(default: %(default)s)",
    )


def _add_training(add):
    add("--epochs", type=_count, default=3, help="epochs in all (default: %(default)s)")
    add("--batch-size", type=_count, default=1, help="crops of a step (default: %(default)s)")
    add(
        "--lr",
        type=_positive,
        default=0.01,
        help="learning rate of Adam at the start; it falls to 0 along a cosine (default: %(default)s)",
    )
    add(
        "--seed",
        type=int,
        default=0,
        help="of the weights and the crops (default: %(default)s)",
    )


def _add_machine(add):
    add(
        "--device-memory",
        type=_bytes,
        metavar="BYTES",
        help="for strips on the accelerator, or beside the images without one, e.g. 512MB "
        "(default: 80 %% of the accelerator's free memory, or 256 MiB); only --mode offload",
    )
    add(
        "--host-memory",
        type=_bytes,
        metavar="BYTES",
        help="for stored images and gradients, e.g. 32GB (default: what is free); "
        "only --mode offload",
    )
    add(
        "--precision",
        choices=["float32", "mixed_bfloat16", "float64"],
        default="float32",
        help="mixed_bfloat16 halves what is stored, float64 is for checks (default: %(default)s)",
    )


def _add_run(add):
    add(
        "--out",
        metavar="FOLDER",
        help="run folder for model, history, metrics, plan and pictures "
        "(default: runs/<mode>-<date>-<time>)",
    )
    add(
        "--resume",
        action="store_true",
        help="continue the run in --out after its last whole epoch, with its settings; "
        "give --epochs to train longer",
    )
    add(
        "--config",
        metavar="FILE",
        help="YAML file of flags (device_memory: 512MB), such as config.yaml of a run; flags given "
        "beside it win",
    )
    add("--dry-run", action="store_true", help="print the plan and stop; nothing is written")


def _dashed(token):
    """`--batch_size=4` as `--batch-size=4`."""
    name, equals, value = token.partition("=")
    return name.replace("_", "-") + equals + value if token.startswith("--") else token


def _read(file):
    """A YAML file as tokens of the command line, so that they are checked alike."""
    try:
        values = yaml.safe_load(Path(file).read_text(encoding="utf-8")) or {}
    except FileNotFoundError:
        _parser().error(f"{file}: there is no such file; expected a YAML file of flags")
    except yaml.YAMLError as error:
        _parser().error(f"{file}: is not YAML: {' '.join(str(error).split())}")
    if not isinstance(values, dict):
        _parser().error(f"{file}: holds no `flag: value` lines; expected e.g. `epochs: 6`")
    for name in values:
        if str(name).replace("-", "_") in _NOT_SAVED:
            _parser().error(f"{file}: '{name}' can be given on the command line only")
    return [_dashed(f"--{name}={value}") for name, value in values.items() if value is not None]


def _crop(text):
    try:
        rows, columns = crop_size(text.lower())
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"'{text}' is not rows x columns, e.g. 1024x2048"
        ) from None
    if min(rows, columns) < STRIDE or rows % STRIDE or columns % STRIDE:
        raise argparse.ArgumentTypeError(
            f"'{text}': both must be multiples of {STRIDE}, the stride"
        )
    return f"{rows}x{columns}"


def _count(text):
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"'{text}' must be at least 1")
    return number


def _positive(text):
    number = float(text)
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"'{text}' must be a positive number")
    return number


def _bytes(text):
    try:
        parse_bytes(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text
