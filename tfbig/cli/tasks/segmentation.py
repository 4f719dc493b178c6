"""Train the gigapixel U-Net to tell tissue from background on whole slides."""

import tempfile
from argparse import ArgumentTypeError
from pathlib import Path

import keras
import numpy as np

import tfbig
from tfbig.cli import load_model, machine, open_run, paths
from tfbig.cli import settings as command_line
from tfbig.cli.data import slides_and_masks, splits
from tfbig.cli.tasks import classifier_training
from tfbig.metrics import Dice
from tfbig.models.gigapixel_unet import STRIDE, gigapixel_unet
from tfbig.results import figures, run_folder, slide_viewer
from tfbig.training import Epochs

LOSS = "binary_crossentropy"
MODES = {
    "offload": "strip by strip, images stored in host memory or on disk",
    "device": "plain Keras on whole crops, same data and seed",
    "unified": machine.UNIFIED,
}
EXAMPLE = (
    "--mode offload --data my_slides --crop 16000x64000 --device-memory 1GB "
    "--epochs 20 --out runs/mine"
)
STRIP_ROWS = 512
OVERLAPS = ("dice", "iou", "precision", "sensitivity")
_DATA = Path(__file__).parents[3] / "examples" / "data"


def add_flags(add_data, add_training):
    """Add the flags of this task, in the groups of data and of training."""
    add_data(
        "--data",
        default=str(_DATA) if _DATA.is_dir() else None,
        metavar="FOLDER",
        help="folder of slides (TIFF, SVS, NDPI, NPY, PNG); the last by name is for validation and never trained on. "
        "The labels of a.tif are masks/a.* in the folder if that exists, else computed from the slide "
        "(default: the slides in examples/data of a checkout)",
    )
    add_data(
        "--crops",
        type=command_line.count,
        default=100,
        help="number of random crops of the training slides; each epoch uses all of them, in the same order "
        "(default: %(default)s)",
    )
    add_data(
        "--crop",
        type=_crop,
        default="1024x1024",
        metavar="HxW",
        help=f"rows x columns of a crop in pixels, multiples of {STRIDE}; validation uses the whole slide "
        "(default: %(default)s)",
    )
    add_training(
        "--lr",
        type=command_line.positive,
        default=0.01,
        help="initial learning rate of Adam; it decreases to 0 along a cosine (default: %(default)s)",
    )
    add_training(
        "--epochs",
        type=command_line.count,
        default=3,
        help="number of epochs (default: %(default)s)",
    )
    add_training(
        "--batch-size",
        type=command_line.count,
        default=1,
        help="crops of a step (default: %(default)s)",
    )
    add_training(
        "--test-only",
        metavar="RUN",
        help="train nothing; evaluate the model of this run folder on all slides of --data, or, in the folder it "
        "was trained on, on the validation slide",
    )


def crop_size(text):
    """Return `"1024x2048"` as `(1024, 2048)`."""
    rows, columns = (int(side) for side in text.split("x"))
    return rows, columns


def _crop(text):
    try:
        rows, columns = crop_size(text.lower())
    except ValueError:
        raise ArgumentTypeError(f"'{text}' is not rows x columns, e.g. 1024x2048") from None
    if min(rows, columns) < STRIDE or rows % STRIDE or columns % STRIDE:
        raise ArgumentTypeError(
            f"'{text}': both must be multiples of {STRIDE}, the stride of the network"
        )
    return f"{rows}x{columns}"


def train(settings):
    """Run a training from its settings, or an evaluation, and return the exit code.

    Raises:
        FlagError: There is no `--data`, and no checkout with examples.
    """
    if settings.data is None:
        raise paths.FlagError(
            "--data FOLDER is missing: the folder of your slides, such as --data my_slides. Only a checkout of tfbig "
            "has slides of its own, in examples/data. For other data: --task mil --help, --task patchgd --help."
        )
    if settings.test_only:
        return evaluate(settings)
    size = crop_size(settings.crop)
    (*training, held_out), failed = slides_and_masks.open_slides(settings.data, least=2)
    splits.check_failed(failed, settings.strict)
    crops = slides_and_masks.random_crops(training, size, settings.crops, settings.seed)
    _print_data(settings, training, held_out)

    with machine.scope():
        model, twin = make_both(settings)
        compile_both(model, twin, settings)
        plan = plan_of(twin, model, (settings.batch_size, *size, 1))
        validation = plan_of(twin, model, (1, *held_out.padded().image.shape), training=False)
    planned_bytes = machine.planned_bytes(plan, validation)
    print(f"\n{plan}\n", flush=True)
    if settings.dry_run:
        return 0

    folder = open_run.open_run(settings)
    run_folder.write_text(folder / "plan.txt", f"{plan}\n")
    history = fit(model, crops, held_out, folder, settings)
    run_folder.save_model(folder / "model.keras", twin)
    if not machine.is_chief():
        return splits.exit_code(failed, folder)
    model, twin = machine.without_strategy((model, twin), lambda: make_both(settings), folder)
    write_results(model, twin, held_out, folder, history, settings, planned_bytes)
    return splits.exit_code(failed, folder)


def evaluate(settings):
    """Evaluate the model of a run on labelled slides, and return the exit code."""
    config = command_line.read_yaml(Path(settings.test_only) / run_folder.CONFIG)
    slides, failed = slides_and_masks.open_slides(settings.data)
    splits.check_failed(failed, settings.strict)
    if Path(config["data"]).resolve() == Path(settings.data).resolve():
        slides = slides[-1:]
    print(
        f"evaluating {settings.test_only} on {', '.join(slide.name for slide in slides)}",
        flush=True,
    )
    if settings.dry_run:
        return 0
    twin = load_model.load(Path(settings.test_only) / "model.keras")
    model = twin if machine.is_plain(settings) else stream(twin, settings)
    folder = open_run.open_run(settings)
    rows = [evaluate_slide(model, twin, slide, folder) for slide in slides]
    run_folder.write_csv(folder / run_folder.PREDICTIONS, rows)
    _, peak = run_folder.memory_bytes()
    values = {key: [row[key] for row in rows if row[key] is not None] for key in OVERLAPS}
    means = {key: float(np.mean(numbers)) for key, numbers in values.items() if numbers}
    metrics = {"mode": settings.mode, **means, "slides": len(rows), "peak_bytes": peak}
    command_line.write_metrics(folder, settings, metrics)
    code = splits.exit_code(failed, folder)
    command_line.print_results(means, folder)
    return code


def evaluate_slide(model, twin, slide, folder):
    """Draw the prediction of a slide, and return a row with its overlap with the labels."""
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        rows, columns = slide.image.shape[:2]
        prediction = predict(model, twin, slide.padded().image, Path(scratch) / "tissue.npy")
        prediction = prediction.crop((0, rows), (0, columns))
        row = {"slide": slide.name} | overlaps(slide.labels, prediction)
        result = "no tissue" if row["dice"] is None else f"Dice {row['dice']:.4f}"
        draw(folder, Path(slide.name).stem, slide, prediction, f"{slide.name}: {result}")
    return row


def overlaps(labels, prediction):
    """Return Dice, IoU, precision and sensitivity of a probability and labels 0 and 1; None if undefined."""
    counts = np.zeros(3, np.int64)  # pixels that are labelled, predicted, both
    for start in range(0, labels.shape[0], STRIP_ROWS):
        strip = start, min(start + STRIP_ROWS, labels.shape[0])
        real, predicted = labels.read(*strip) > 0, prediction.read(*strip) > 0.5
        counts += [real.sum(), predicted.sum(), (real & predicted).sum()]
    labelled, predicted, both = map(float, counts)
    shares = {
        "dice": (2 * both, labelled + predicted),
        "iou": (both, labelled + predicted - both),
        "precision": (both, predicted),
        "sensitivity": (both, labelled),
    }
    return {name: part / whole if whole else None for name, (part, whole) in shares.items()}


def make_model(settings):
    """Return a new plain model, initialised from the seed."""
    keras.config.set_dtype_policy(settings.precision)
    keras.utils.set_random_seed(settings.seed)
    return gigapixel_unet()


def make_both(settings):
    """Return the model to train, and the plain model to save."""
    twin = machine.synchronize_norm(settings, make_model(settings))
    return (twin if machine.is_plain(settings) else stream(twin, settings)), twin


def stream(twin, settings):
    """Return the model streamed strip by strip, with the same variables."""
    budget = machine.budget(settings)
    return tfbig.stream(twin, budget, devices=settings.devices)


def compile_both(model, twin, settings):
    """Compile both models with one optimizer, so that the saved plain model can be trained further."""
    optimizer = make_optimizer(settings)
    twin.compile(optimizer, LOSS)
    model.compile(optimizer, LOSS, metrics=[Dice()])


def make_optimizer(settings):
    """Return Adam with damped steps: with Keras' defaults, rounding errors grow 1000 times in a few hundred steps.

    Damped, both modes end a run with the same loss, and no step undoes what was learned.
    """
    return keras.optimizers.Adam(schedule(settings), beta_1=0.8, epsilon=1e-3, global_clipnorm=0.3)


def schedule(settings):
    """Return a learning rate that decreases to 0 along a cosine."""
    steps = steps_per_epoch(settings) * settings.epochs
    return keras.optimizers.schedules.CosineDecay(settings.lr, steps)


def steps_per_epoch(settings):
    """Return the number of batches of all crops; the last may be smaller."""
    return -(-settings.crops // settings.batch_size)


def plan_of(twin, model, shape, training=True):
    """Return the plan of a step; plain Keras is a plan of one strip."""
    if model is twin:
        model = tfbig.stream(twin, tfbig.Budget("1TB", "1TB"), strip_rows=shape[1])
        model.compile(loss=LOSS)
    return model.plan(shape, training)


def fit(model, crops, held_out, folder, settings):
    """Train from the last checkpoint, and return the history of all epochs."""
    dense = machine.is_plain(settings)

    def batches(shard):
        chosen = [crops[i] for i in shard.items(len(crops), settings.batch_size)]
        return slides_and_masks.dataset(chosen, settings.batch_size, dense)

    whole = [held_out.padded()]
    validation = Epochs(
        1, lambda shard: slides_and_masks.dataset([whole[i] for i in shard.items(1, 1)], 1, dense)
    )
    names = [f"{crop.name} {crop.image.shape} {Path(crop.labels.name).name}" for crop in crops]
    epochs = Epochs(steps_per_epoch(settings), batches, names)
    return classifier_training.fit(model, settings, folder, epochs, validation)


def write_results(model, twin, held_out, folder, history, settings, planned_bytes):
    """Write pictures, and last the metrics, whose presence means that the run has ended."""
    _, peak = run_folder.memory_bytes()  # of training steps: pictures are not in the plan
    figures.learning_curve(folder / "learning_curve.png", history)
    last = history[-1]
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        prediction = predict(model, twin, held_out.padded().image, Path(scratch) / "tissue.npy")
        rows, columns = held_out.image.shape[:2]
        draw(
            folder,
            "overlay",
            held_out,
            prediction.crop((0, rows), (0, columns)),
            f"{held_out.name}: Dice {last['val_dice']:.4f}",
        )
    metrics = {
        key: last[key] for key in ("loss", "val_loss", "dice", "val_dice", "seconds_per_step")
    }
    metrics |= planned_bytes | {"peak_bytes": peak}
    metrics |= {"mode": settings.mode, "epochs": len(history)}
    command_line.write_metrics(folder, settings, metrics)
    results = {key: last[key] for key in ("loss", "val_loss", "val_dice")}
    command_line.print_results(results, folder)


def draw(folder, name, slide, prediction, title):
    """Draw the prediction and the labels of a slide, as a picture and for the zoomable view of the report."""
    figures.overlay(folder / f"{name}.png", slide.image, slide.labels, prediction, title)
    gray, labels, probabilities = (
        figures.thumbnail(source, slide_viewer.MAX_SIDE)
        for source in (slide.image, slide.labels, prediction)
    )
    prediction, labels = probabilities[..., 0] > 0.5, labels[..., 0] > 0
    compared = prediction * np.where(labels, 1, 2) + 3 * (labels & ~prediction)
    overlays = [
        slide_viewer.class_overlay(
            "prediction and labels", compared, ("background", "correct", "false", "missed")
        ),
        slide_viewer.class_overlay("prediction", prediction, ("background", "tissue"), opacity=0.0),
    ]
    slide_viewer.write_view(folder, name, 255 - gray, overlays, title=title)


def predict(model, twin, image, path):
    """Return the probability of tissue as a source, streamed to a file or predicted at once."""
    if model is not twin:
        return model.predict_to(image, path)
    whole = image.read(0, image.shape[0])[None]  # [1, H, W, 1]
    np.save(path, twin.predict_on_batch(whole)[0].astype(np.float32))
    return tfbig.open(path)


def _print_data(settings, training, held_out):
    names = ", ".join(slide.name for slide in training)
    rows, columns = held_out.image.shape[:2]
    print(f"mode {settings.mode}, precision {settings.precision}, seed {settings.seed}")
    print(f"training on {settings.crops} crops of {settings.crop} from {names}")
    print(f"validating on all of {held_out.name}, {rows}x{columns}, which is not trained on")
