"""What a network finds on slides of any size: masks, classes and attention for QuPath, pictures, and a table."""

from tfbig.cli import load_model, machine, predictors, slide_batch
from tfbig.cli import settings as command_line
from tfbig.cli.predictors.results import INPUTS
from tfbig.models.gigapixel_unet import STRIDE


def add_flags(add):
    """Flags of this command."""
    add(
        "model",
        metavar="MODEL",
        help="run folder of train.py, or a .keras file: images to masks or classes, bags of tiles to classes",
    )
    slide_batch.add_flags(add)
    add(
        "--input",
        choices=list(INPUTS),
        help="what the network sees; inverted: the white ground is 0 (default: that of the run; else by its channels)",
    )
    slide_batch.add_resolution(
        add, "what it sees", "that of the run; else --level 0, of tiles --mpp 0.5"
    )
    add("--classes", nargs="+", metavar="NAME", help="(default: those of the run, or numbers)")
    add(
        "--stride",
        type=command_line.count,
        help="masks: rows and columns of the network's input are multiples of it; slides are padded "
        f"(default: {STRIDE} for the gigapixel U-Net of a run, else 32)",
    )
    add("--threshold", type=float, default=0.5, help="masks: of one output (default: 0.5)")
    add(
        "--smallest",
        type=float,
        default=16,
        help="masks: regions of fewer pixels of the small image, of which outlines are made, are no regions "
        "(default: 16)",
    )
    add(
        "--probabilities",
        action="store_true",
        help="masks: write NAME_probabilities.ome.tif too",
    )
    add("--coords", metavar="FOLDER", help="bags: SLIDE.h5 of tfbig tile, CLAM or TRIDENT")
    add(
        "--min-tissue",
        type=command_line.positive,
        help="bags: share of a tile that must be tissue (default: that of the run, or 0.6)",
    )
    load_model.add_flag(add)
    machine.add_memory(add)


def run(settings):
    """Predicts every slide; gives the exit code."""
    return slide_batch.run(settings, work)


def work(settings):
    """What is done with a slide, and whether it was done before."""
    predictor = predictors.make(settings)
    return predictor.predict, predictor.finished
