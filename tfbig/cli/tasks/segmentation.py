"""Trains the gigapixel U-Net to tell tissue from background on whole slides."""

import tempfile
from argparse import ArgumentTypeError
from pathlib import Path

import keras
import numpy as np

import tfbig
from tfbig.cli import load_model, machine, open_run
from tfbig.cli import settings as command_line
from tfbig.cli.data import slides_and_masks, splits
from tfbig.cli.tasks import classifier_training
from tfbig.metrics import Dice
from tfbig.models.gigapixel_unet import STRIDE, gigapixel_unet
from tfbig.results import figures, run_folder, slide_viewer
from tfbig.training import Epochs

LOSS = "binary_crossentropy"
MODES = {
    "offload": "strip by strip, images stay in host memory or on disk",
    "device": "plain Keras with whole crops, on the same data with the same seed",
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
    """Flags of this task, in the groups of data and of training."""
    add_data(
        "--data",
        default=str(_DATA),
        metavar="FOLDER",
        help="folder of slides (TIFF, SVS, NDPI, NPY, PNG); the last by name is never trained on, "
        "it validates. A slide a.tif takes its labels from masks/a.* in the folder if there is "
        "one, else they are made from the slide (default: the slides in examples/data)",
    )
    add_data(
        "--crops",
        type=command_line.count,
        default=100,
        help="random crops of the training slides, all seen once an epoch, in the same order "
        "(default: %(default)s)",
    )
    add_data(
        "--crop",
        type=_crop,
        default="1024x1024",
        metavar="HxW",
        help=f"rows x columns of a crop, multiples of {STRIDE}; validation is on the whole slide "
        "(default: %(default)s)",
    )
    add_training(
        "--lr",
        type=command_line.positive,
        default=0.01,
        help="learning rate of Adam at the start; it falls to 0 along a cosine (default: %(default)s)",
    )
    add_training(
        "--epochs", type=command_line.count, default=3, help="in all (default: %(default)s)"
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
        help="nothing is trained: the model of this run folder is judged on all slides of --data; of the folder that "
        "it learned from on the last, which it never saw",
    )


def crop_size(text):
    """`"1024x2048"` as `(1024, 2048)`."""
    rows, columns = (int(side) for side in text.split("x"))
    return rows, columns


def _crop(text):
    try:
        rows, columns = crop_size(text.lower())
    except ValueError:
        raise ArgumentTypeError(f"'{text}' is not rows x columns, e.g. 1024x2048") from None
    if min(rows, columns) < STRIDE or rows % STRIDE or columns % STRIDE:
        raise ArgumentTypeError(f"'{text}': both must be multiples of {STRIDE}, the stride")
    return f"{rows}x{columns}"


def train(settings):
    """Data, model, plan, fit, results: a run from its settings; gives the exit code."""
    if settings.test_only:
        return evaluate(settings)
    size = crop_size(settings.crop)
    (*seen, unseen), failed = slides_and_masks.open_slides(settings.data, least=2)
    splits.check_failed(failed, settings.strict)
    crops = slides_and_masks.random_crops(seen, size, settings.crops, settings.seed)
    _print_data(settings, seen, unseen)

    with machine.scope():
        model, twin = make_both(settings)
        compile_both(model, twin, settings)
        plan = plan_of(twin, model, (settings.batch_size, *size, 1))
        validation = plan_of(twin, model, (1, *unseen.padded().image.shape), training=False)
    planned_bytes = classifier_training.planned_bytes(plan, validation)
    print(f"\n{plan}\n", flush=True)
    if settings.dry_run:
        return 0

    folder = open_run.open_run(settings)
    run_folder.write_text(folder / "plan.txt", f"{plan}\n")
    history = fit(model, crops, unseen, folder, settings)
    run_folder.save_model(folder / "model.keras", twin)
    if not machine.is_chief():
        return splits.exit_code(failed, folder)
    model, twin = machine.alone((model, twin), lambda: make_both(settings), folder)
    write_results(model, twin, unseen, folder, history, settings, planned_bytes)
    return splits.exit_code(failed, folder)


def evaluate(settings):
    """The model of a run on slides with labels: overlap of each, pictures, the mean; gives the exit code."""
    known = command_line.read_yaml(Path(settings.test_only) / run_folder.CONFIG)
    found, failed = slides_and_masks.open_slides(settings.data)
    splits.check_failed(failed, settings.strict)
    if Path(known["data"]).resolve() == Path(settings.data).resolve():
        found = found[-1:]
    print(f"judges {settings.test_only} on {', '.join(slide.name for slide in found)}", flush=True)
    if settings.dry_run:
        return 0
    twin = load_model.load(Path(settings.test_only) / "model.keras")
    model = twin if machine.is_plain(settings) else stream(twin, settings)
    folder = open_run.open_run(settings)
    rows = [judge(model, twin, slide, folder) for slide in found]
    run_folder.write_csv(folder / run_folder.PREDICTIONS, rows)
    _, peak = run_folder.memory_bytes()
    known = {key: [row[key] for row in rows if row[key] is not None] for key in OVERLAPS}
    means = {key: float(np.mean(numbers)) for key, numbers in known.items() if numbers}
    metrics = {"mode": settings.mode, **means, "slides": len(rows), "peak_bytes": peak}
    command_line.write_metrics(folder, settings, metrics)
    code = splits.exit_code(failed, folder)
    command_line.tell_results(means, folder)
    return code


def judge(model, twin, slide, folder):
    """What was found on a slide against its labels, drawn, and as a row of numbers."""
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        rows, columns = slide.image.shape[:2]
        found = predict(model, twin, slide.padded().image, Path(scratch) / "tissue.npy")
        found = found.crop((0, rows), (0, columns))
        row = {"slide": slide.name} | overlaps(slide.labels, found)
        told = "nothing to find" if row["dice"] is None else f"Dice {row['dice']:.4f}"
        draw(folder, Path(slide.name).stem, slide, found, f"{slide.name}: {told}")
    return row


def overlaps(labels, found):
    """Dice, IoU, precision and sensitivity of a probability against labels 0 and 1; None where there is nothing."""
    true = np.zeros(3, np.int64)  # pixels that are labelled, found, both
    for start in range(0, labels.shape[0], STRIP_ROWS):
        strip = start, min(start + STRIP_ROWS, labels.shape[0])
        real, seen = labels.read(*strip) > 0, found.read(*strip) > 0.5
        true += [real.sum(), seen.sum(), (real & seen).sum()]
    labelled, seen, both = map(float, true)
    shares = {
        "dice": (2 * both, labelled + seen),
        "iou": (both, labelled + seen - both),
        "precision": (both, seen),
        "sensitivity": (both, labelled),
    }
    return {name: part / whole if whole else None for name, (part, whole) in shares.items()}


def make_model(settings):
    """The plain model, new from the seed."""
    keras.config.set_dtype_policy(settings.precision)
    keras.utils.set_random_seed(settings.seed)
    return gigapixel_unet()


def make_both(settings):
    """What is trained, and the plain model that is saved."""
    twin = machine.of_all_replicas(settings, make_model(settings))
    return (twin if machine.is_plain(settings) else stream(twin, settings)), twin


def stream(twin, settings):
    """The same model strip by strip, sharing the variables."""
    budget = machine.budget(settings)
    return tfbig.stream(twin, budget, devices=settings.devices)


def compile_both(model, twin, settings):
    """One optimizer for both: what is saved is the plain model, and it can be trained on."""
    optimizer = make_optimizer(settings)
    twin.compile(optimizer, LOSS)
    model.compile(optimizer, LOSS, metrics=[Dice()])


def make_optimizer(settings):
    """Adam, calmed: with Keras' defaults rounding errors grow 1000 times in a few hundred steps.

    So calmed, both modes end a run with the same loss, and no step undoes what was learned.
    """
    return keras.optimizers.Adam(schedule(settings), beta_1=0.8, epsilon=1e-3, global_clipnorm=0.3)


def schedule(settings):
    """The learning rate falls to 0 along a cosine."""
    steps = steps_per_epoch(settings) * settings.epochs
    return keras.optimizers.schedules.CosineDecay(settings.lr, steps)


def steps_per_epoch(settings):
    """Batches that hold all crops; the last may be smaller."""
    return -(-settings.crops // settings.batch_size)


def plan_of(twin, model, shape, training=True):
    """The plan of a step; plain Keras is a plan of one strip."""
    if model is twin:
        model = tfbig.stream(twin, tfbig.Budget("1TB", "1TB"), strip_rows=shape[1])
        model.compile(loss=LOSS)
    return model.plan(shape, training)


def fit(model, crops, unseen, folder, settings):
    """Trains from where the checkpoints are; gives the history of all epochs."""
    dense = machine.is_plain(settings)

    def batches(shard):
        own = [crops[i] for i in shard.items(len(crops), settings.batch_size)]
        return slides_and_masks.dataset(own, settings.batch_size, dense)

    whole = [unseen.padded()]
    validation = Epochs(
        1, lambda shard: slides_and_masks.dataset([whole[i] for i in shard.items(1, 1)], 1, dense)
    )
    names = [f"{crop.name} {crop.image.shape} {Path(crop.labels.name).name}" for crop in crops]
    epochs = Epochs(steps_per_epoch(settings), batches, names)
    return classifier_training.fit(model, settings, folder, epochs, validation)


def write_results(model, twin, unseen, folder, history, settings, planned_bytes):
    """Model, pictures, and last the metrics, which say that the run has ended."""
    _, peak = run_folder.memory_bytes()  # of the steps: pictures are not in the plan
    figures.learning_curve(folder / "learning_curve.png", history)
    last = history[-1]
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        found = predict(model, twin, unseen.padded().image, Path(scratch) / "tissue.npy")
        rows, columns = unseen.image.shape[:2]
        draw(
            folder,
            "overlay",
            unseen,
            found.crop((0, rows), (0, columns)),
            f"{unseen.name}: Dice {last['val_dice']:.4f}",
        )
    metrics = {
        key: last[key] for key in ("loss", "val_loss", "dice", "val_dice", "seconds_per_step")
    }
    metrics |= planned_bytes | {"peak_bytes": peak}
    metrics |= {"mode": settings.mode, "epochs": len(history)}
    command_line.write_metrics(folder, settings, metrics)
    told = {key: last[key] for key in ("loss", "val_loss", "val_dice")}
    command_line.tell_results(told, folder)


def draw(folder, name, slide, found, title):
    """What was found on a slide beside its labels: as a picture, and for the zoomable view of the report."""
    figures.overlay(folder / f"{name}.png", slide.image, slide.labels, found, title)
    gray, labels, chances = (
        figures.thumbnail(source, slide_viewer.MAX_SIDE)
        for source in (slide.image, slide.labels, found)
    )
    found, labels = chances[..., 0] > 0.5, labels[..., 0] > 0
    compared = found * np.where(labels, 1, 2) + 3 * (labels & ~found)
    overlays = [
        slide_viewer.of_classes(
            "found and labels", compared, ("background", "right", "false", "missed")
        ),
        slide_viewer.of_classes("found", found, ("background", "tissue"), opacity=0.0),
    ]
    slide_viewer.write_view(folder, name, 255 - gray, overlays, title=title)


def predict(model, twin, image, path):
    """The probability of tissue as a source: streamed to a file, or predicted whole."""
    if model is not twin:
        return model.predict_to(image, path)
    whole = image.read(0, image.shape[0])[None]  # [1, H, W, 1]
    np.save(path, twin.predict_on_batch(whole)[0].astype(np.float32))
    return tfbig.open(path)


def _print_data(settings, seen, unseen):
    names = ", ".join(slide.name for slide in seen)
    rows, columns = unseen.image.shape[:2]
    print(f"mode {settings.mode}, precision {settings.precision}, seed {settings.seed}")
    print(f"trains on {settings.crops} crops of {settings.crop} from {names}")
    print(f"validates on the whole of {unseen.name}, {rows}x{columns}, never trained on")
