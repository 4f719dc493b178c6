"""Predict masks or classes of slides of any size: files for QuPath, pictures and a table."""

from tfbig.cli import load_model, machine, paths, predictors, slide_batch
from tfbig.cli import settings as command_line
from tfbig.cli.predictors.results import INPUT_CHANNELS
from tfbig.models.gigapixel_unet import STRIDE


def add_flags(add):
    """Add the flags of this command."""
    add(
        "model",
        metavar="MODEL",
        help="run folder of train, or .keras file; from images to masks or classes, or from bags of tiles to classes",
    )
    slide_batch.add_flags(add)
    add(
        "--input",
        choices=list(INPUT_CHANNELS),
        help="channels that the network expects; inverted-gray: white is 0 (default: of the run, else by its channels)",
    )
    slide_batch.add_resolution(
        add, "the network's input", "the resolution of the run, else --level 0; bags: --mpp 0.5"
    )
    add(
        "--classes",
        nargs="+",
        metavar="NAME",
        help="names of the classes (default: of the run, else numbers)",
    )
    add(
        "--stride",
        type=command_line.count,
        help="masks: pad rows and columns of slides to multiples of this many pixels "
        f"(default: {STRIDE} for the gigapixel U-Net of a run, else 32)",
    )
    add(
        "--threshold",
        type=float,
        default=0.5,
        help="masks: probability above which a pixel is of class 1, for networks with one output (default: 0.5)",
    )
    add(
        "--smallest",
        type=float,
        default=16,
        help="masks: ignore regions of fewer pixels in the reduced mask from which outlines are drawn "
        "(default: 16)",
    )
    add(
        "--probabilities",
        action="store_true",
        help="masks: also write NAME_probabilities.ome.tif",
    )
    add(
        "--coords",
        metavar="FOLDER",
        help="bags: folder with SLIDE.h5 of tfbig tile, CLAM or TRIDENT (default: find tiles as tfbig tile does)",
    )
    add(
        "--min-tissue",
        type=command_line.share,
        help="bags: smallest share of tissue in a tile, 0 to 1 (default: of the run, else 0.6)",
    )
    load_model.add_flag(add)
    machine.add_memory(add)


def run(settings):
    """Predict every slide and return the exit code."""
    paths.check_argument("model", settings.model)
    return slide_batch.run(settings, work)


def work(settings):
    """Return the function that predicts a slide, and the one that tells whether it is done."""
    predictor = predictors.make(settings)
    return predictor.predict, predictor.finished
