"""Trains the gigapixel U-Net to tell tissue from background, strip by strip or as plain Keras."""

import sys
import tempfile
import time
from pathlib import Path

import keras
import numpy as np

import tfbig
from models import settings as command_line
from models import slides
from models.gigapixel_unet import gigapixel_unet
from tfbig import pictures, runfolder
from tfbig.metrics import Dice

LOSS = "binary_crossentropy"


def main(argv=None):
    """Runs the command line; gives the exit code."""
    settings = command_line.parse(sys.argv[1:] if argv is None else argv)
    try:
        train(settings)
    except (tfbig.TfbigError, OSError) as error:
        return _fail(error)
    except KeyboardInterrupt:
        return _fail("stopped; --resume with --out continues after the last whole epoch", code=130)
    return 0


def train(settings):
    """Data, model, plan, fit, results: a run from its settings."""
    size = command_line.crop_size(settings.crop)
    training, unseen = slides.open_slides(settings.data)
    crops = slides.random_crops(training, size, settings.crops, settings.seed)
    _print_data(settings, training, unseen)

    twin = make_model(settings)
    model = twin if settings.mode == "device" else stream(twin, settings)
    compile_both(model, twin, settings)
    plan = plan_of(twin, model, (settings.batch_size, *size, 1))
    planned_bytes = plan_bytes(twin, model, plan, unseen)
    print(f"\n{plan}\n", flush=True)
    if settings.dry_run:
        return

    folder = open_folder(settings)
    runfolder.write_yaml(folder / runfolder.CONFIG, command_line.to_save(settings))
    runfolder.write_text(folder / "plan.txt", f"{plan}\n")
    history = fit(model, twin, crops, unseen, folder, settings)
    write_results(model, twin, unseen, folder, history, settings, planned_bytes)


def make_model(settings):
    """The plain model: new from the seed, or with weights and optimizer of the resumed run."""
    if settings.resume:
        return keras.models.load_model(runfolder.checkpoint(settings.out))
    keras.config.set_dtype_policy(settings.precision)
    keras.utils.set_random_seed(settings.seed)
    return gigapixel_unet()


def stream(twin, settings):
    """The same model strip by strip, sharing the variables."""
    return tfbig.stream(twin, tfbig.Budget(settings.device_memory, settings.host_memory))


def compile_both(model, twin, settings):
    """One optimizer for both: what is saved is the plain model, and it can be trained on."""
    optimizer = twin.optimizer if settings.resume else make_optimizer(settings)
    optimizer.learning_rate = schedule(settings)
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


def plan_bytes(twin, model, plan, unseen):
    """Most bytes of the process: what it holds by now, and a training step or the whole slide that validates.

    What one of them takes for images of any size, graphs above all, stays while the other runs.
    """
    validation = plan_of(twin, model, (1, *unseen.padded().image.shape), training=False)
    held, _ = runfolder.memory_bytes()
    both = plan, validation
    most = max(p.peak_bytes for p in both) + min(p.fixed_bytes for p in both)
    return {"base_bytes": held, "planned_bytes": held + most}


def open_folder(settings):
    """The run folder, by default named after mode and time."""
    if settings.resume:
        return Path(settings.out)
    name = f"{settings.mode}-{time.strftime('%Y%m%d-%H%M%S')}"
    return runfolder.create(settings.out or Path("runs") / name)


def fit(model, twin, crops, unseen, folder, settings):
    """Trains from the epoch that the optimizer has reached; gives the history of all epochs."""
    dense = settings.mode == "device"
    done = int(model.optimizer.iterations) // steps_per_epoch(settings)
    history = runfolder.read_csv(folder / runfolder.HISTORY)[:done]
    recorder = runfolder.Recorder(folder, twin, history)
    model.fit(
        slides.dataset(crops, settings.batch_size, dense),
        validation_data=slides.dataset([unseen.padded()], 1, dense),
        initial_epoch=done,
        epochs=settings.epochs,
        shuffle=False,
        callbacks=[recorder],
        verbose=1 if sys.stdout.isatty() else 2,
    )
    return recorder.history


def write_results(model, twin, unseen, folder, history, settings, planned_bytes):
    """Model, pictures, and last the metrics, which say that the run has ended."""
    _, peak = runfolder.memory_bytes()  # of the steps: pictures are not in the plan
    runfolder.save_model(folder / "model.keras", twin)
    pictures.learning_curve(folder / "learning_curve.png", history)
    last = history[-1]
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        found = predict(model, twin, unseen.padded().image, Path(scratch) / "tissue.npy")
        rows, columns = unseen.image.shape[:2]
        pictures.overlay(
            folder / "overlay.png",
            unseen.image,
            unseen.labels,
            found.crop((0, rows), (0, columns)),
            f"{unseen.name}: Dice {last['val_dice']:.4f}",
        )
    metrics = {
        key: last[key] for key in ("loss", "val_loss", "dice", "val_dice", "seconds_per_step")
    }
    metrics |= planned_bytes | {"peak_bytes": peak}
    metrics |= {"mode": settings.mode, "epochs": len(history)}
    runfolder.write_json(folder / runfolder.METRICS, metrics)
    print(
        f"loss {last['loss']:.6f}  val_loss {last['val_loss']:.6f}  val_dice {last['val_dice']:.6f}"
        f"\nrun folder: {folder}"
    )


def predict(model, twin, image, path):
    """The probability of tissue as a source: streamed to a file, or predicted whole."""
    if model is not twin:
        return model.predict_to(image, path)
    whole = image.read(0, image.shape[0])[None]  # [1, H, W, 1]
    np.save(path, twin.predict_on_batch(whole)[0].astype(np.float32))
    return tfbig.open(path)


def _print_data(settings, training, unseen):
    names = ", ".join(slide.name for slide in training)
    rows, columns = unseen.image.shape[:2]
    print(f"mode {settings.mode}, precision {settings.precision}, seed {settings.seed}")
    print(f"trains on {settings.crops} crops of {settings.crop} from {names}")
    print(f"validates on the whole of {unseen.name}, {rows}x{columns}, never trained on")


def _fail(error, code=1):
    print(f"train.py: {error}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
