"""Training loop: equal to `fit`, resumed without a difference after a stop, and its handling of failing batches."""

import re
from contextlib import suppress
from functools import cache

import keras
import numpy as np
import pytest
import tensorflow as tf
from exactness import FLOAT64, assert_same
from keras import layers
from samples import History

import tfbig
from tfbig.data import epochs as datasets
from tfbig.data.worker_shards import Shard
from tfbig.models.pooling import ABMIL
from tfbig.system import progress, signals
from tfbig.training.checkpoint_files import Checkpoints
from tfbig.training.loop import Loop
from tfbig.training.rounds import Epochs

SIDE, IMAGES = 16, 5


def network(kind="classes"):
    """Return a network with dropout and BatchNormalization, with the same weights in every call."""
    keras.utils.set_random_seed(3)
    image = keras.Input((None, None, 1))
    x = layers.Conv2D(3, 3, padding="same", activation="elu")(image)
    x = layers.BatchNormalization(momentum=0.9)(x)
    x = layers.SpatialDropout2D(0.2, seed=5)(x)
    if kind == "masks":
        return keras.Model(image, layers.Conv2D(1, 1, activation="sigmoid")(x))
    x = layers.GlobalAveragePooling2D()(x)
    return keras.Model(image, layers.Dense(2)(layers.Dropout(0.3, seed=6)(x)))


def images(kind="classes"):
    random = np.random.default_rng(0)
    x = random.normal(size=(IMAGES, SIDE, SIDE, 1)).astype(keras.config.floatx())
    y = (x > 0.5).astype("uint8") if kind == "masks" else random.integers(0, 2, IMAGES)
    return x, y


def epochs(x, y, batch_size=1):
    """Return batches in a new order for each epoch."""

    def batches(shard):
        order = np.random.default_rng(shard.epoch).permutation(len(x))
        items = order[shard.items(len(x), batch_size)]
        return tf.data.Dataset.from_tensor_slices((x[items], y[items])).batch(batch_size)

    return Epochs(-(-len(x) // batch_size), batches)


def in_order(x, y, batch_size=2):
    """Return batches in order, for validation by default."""

    def batches(shard):
        items = shard.items(len(x), batch_size)
        return tf.data.Dataset.from_tensor_slices((x[items], y[items])).batch(batch_size)

    return Epochs(-(-len(x) // batch_size), batches)


def plain(kind="classes"):
    model = network(kind)
    compile_(model, kind)
    return model


def streamed(kind="classes"):
    model = tfbig.stream(network(kind), strip_rows=6)
    compile_(model, kind)
    return model


def mil_model():
    keras.utils.set_random_seed(3)
    encoder = keras.Sequential(
        [
            keras.Input((SIDE, 1)),
            layers.Conv1D(4, 3),
            layers.BatchNormalization(),
            layers.Dropout(0.2, seed=4),
            layers.GlobalAveragePooling1D(),
        ]
    )
    model = tfbig.mil.MIL(encoder, ABMIL(2, 4), instances_at_once=5)
    compile_(model)
    return model


def patchgd_model(accumulate=None):
    keras.utils.set_random_seed(3)
    patch = keras.Input((4, 4, 1))
    x = layers.BatchNormalization()(layers.Conv2D(4, 3, activation="elu")(patch))
    encoder = keras.Model(patch, layers.GlobalAveragePooling2D()(x))
    head = keras.Sequential([layers.Flatten(), layers.Dropout(0.2, seed=8), layers.Dense(2)])
    shape = (SIDE, SIDE, 1)
    model = tfbig.PatchGD(encoder, head, 4, accumulate=accumulate, image_shape=shape, seed=1)
    compile_(model)
    return model


def compile_(model, kind="classes"):
    entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    loss = "binary_crossentropy" if kind == "masks" else entropy
    optimizer = keras.optimizers.Adam(0.02, global_clipnorm=1.0)
    model.compile(optimizer, loss, metrics=["accuracy"])


class Rows(History):
    """History that requests a stop after a number of batches."""

    def __init__(self, stop_after=None):
        super().__init__()
        self.left = stop_after

    def on_train_batch_end(self, batch, logs=None):
        if self.left is not None:
            self.left -= 1
            if self.left == 0:
                signals.request()


MODELS = {
    "plain": plain,
    "streamed": streamed,
    "masks": lambda: streamed("masks"),
    "bags": mil_model,
    "patches": patchgd_model,
    "patches that step inside": lambda: patchgd_model(2),
}


def train(model, folder=None, callback=None, accumulate=1, num_epochs=2, validate=True, **options):
    x, y = images("masks" if model.loss == "binary_crossentropy" else "classes")
    checkpoints = None if folder is None else Checkpoints(folder, "a run", lambda _: None)
    loop = Loop(
        model,
        epochs(x, y),
        in_order(x, y) if validate else None,
        num_epochs,
        callbacks=[callback or Rows()],
        checkpoints=checkpoints,
        accumulate=accumulate,
        **options,
    )
    loop.run()
    return loop


def values(model):
    return [v.numpy() for v in (*model.variables, *model.optimizer.variables)]


@cache
def uninterrupted(name, accumulate=1):
    """Return the variables and the history of an uninterrupted run, shared by tests (float32)."""
    assert keras.config.floatx() == "float32"
    model, rows = MODELS[name](), Rows()
    train(model, callback=rows, accumulate=accumulate)
    return values(model), rows.rows


slow = pytest.mark.slow
FAST = [("streamed", 1, 6)]
"""Model, accumulated batches, and batches of 10 after which each run is stopped."""
NAMES = ("streamed", "masks", "patches that step inside", "plain", "bags", "patches")
SLOW = [
    ("patches that step inside", 1, 6),
    ("masks", 3, 7),
    *((name, 1, 3) for name in NAMES),
    ("masks", 3, 3),
    ("plain", 2, 3),
    ("patches", 2, 3),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "accumulate", "stop_after"),
    [*FAST, *(pytest.param(*case, marks=slow) for case in SLOW)],
)
def test_resumed_run_equals_uninterrupted_run(name, accumulate, stop_after, tmp_path):
    for _ in range(4):
        resumed, history = MODELS[name](), Rows(stop_after)
        with signals.on_signals(""), suppress(tfbig.Stopped):
            train(resumed, tmp_path, history, accumulate)
            break
    expected, rows = uninterrupted(name, accumulate)
    assert_same(values(resumed), expected)
    assert history.rows == rows


@pytest.mark.parametrize(
    "name", ["plain", *(pytest.param(name, marks=slow) for name in ("streamed", "masks", "bags"))]
)
def test_equals_fit(name):
    fitted = MODELS[name]()
    trained, rows = uninterrupted(name)
    x, y = images("masks" if name == "masks" else "classes")
    history = {}
    for epoch in range(2):
        result = fitted.fit(
            epochs(x, y).batches(Shard(epoch)),
            validation_data=in_order(x, y).batches(Shard()),
            shuffle=False,
            verbose=0,
        )
        history = {key: value[-1] for key, value in result.history.items()}
    assert_same(trained, values(fitted), rtol=0 if name != "plain" else 1e-5)
    assert rows[-1] == pytest.approx({"epoch": 1, **history}, rel=1e-5)


class StopsAt(keras.callbacks.Callback):
    """Callback that ends training after a number of batches or epochs."""

    def __init__(self, batches=None, epochs=None):
        super().__init__()
        self.batches, self.epochs = batches, epochs

    def on_train_batch_end(self, batch, logs=None):
        if self.batches == batch + 1:
            self.model.stop_training = True

    def on_epoch_end(self, epoch, logs=None):
        if self.epochs == epoch + 1:
            self.model.stop_training = True


@pytest.mark.slow
def test_callback_ends_training_as_in_fit(tmp_path):
    x, y = images()
    loop, fitted = plain(), plain()
    checkpoints = Checkpoints(tmp_path, "a run")
    options = {"epochs": 3, "checkpoints": checkpoints, "accumulate": 1}
    Loop(loop, epochs(x, y), callbacks=[StopsAt(batches=3), rows := Rows()], **options).run()
    fitted.fit(
        epochs(x, y).batches(Shard()), callbacks=[StopsAt(batches=3)], verbose=0, shuffle=False
    )
    assert_same(values(loop), values(fitted), rtol=1e-5)
    assert len(rows.rows) == 1
    again = plain()
    Loop(again, epochs(x, y), callbacks=[Rows()], **options).run()
    assert_same(values(again), values(loop))


def test_14_accumulated_images_are_one_batch(float64):
    """The baseline of PatchGD on PANDA; without BatchNormalization, whose statistics are those of a batch."""
    random = np.random.default_rng(0)
    x, y = random.normal(size=(28, 8, 8, 1)), random.integers(0, 2, 28)
    models = []
    for batch_size, accumulate in ((1, 14), (14, 1)):
        keras.utils.set_random_seed(3)
        image = keras.Input((8, 8, 1))
        pooled = layers.GlobalAveragePooling2D()(layers.Conv2D(3, 3, activation="elu")(image))
        model = keras.Model(image, layers.Dense(2)(pooled))
        compile_(model)
        if accumulate > 1:
            Loop(model, in_order(x, y, batch_size), accumulate=accumulate).run()
        else:
            model.fit(x, y, batch_size, shuffle=False, verbose=0)
        assert model.optimizer.iterations == 2
        models.append(model)
    assert_same(values(models[0]), values(models[1]), FLOAT64)


@pytest.mark.slow
def test_accumulated_gradients_are_applied_when_a_callback_ends_training():
    x, y = images()
    model = plain()
    Loop(model, epochs(x, y), callbacks=[StopsAt(batches=3)], accumulate=2).run()
    assert model.optimizer.iterations == 2
    other = plain()
    Loop(other, epochs(x, y), epochs=3, callbacks=[StopsAt(epochs=2)]).run()
    assert other.optimizer.iterations == 2 * IMAGES


@pytest.mark.slow
def test_ends_with_averaged_weights(tmp_path):
    """A resumed finished run has the averages too; with more epochs it continues from the raw weights."""
    x, y = images()

    def averaging():
        model = network()
        optimizer = keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.5)
        model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        return model

    fitted, loop, again, longer, whole = (averaging() for _ in range(5))
    for epoch in range(2):
        fitted.fit(epochs(x, y).batches(Shard(epoch)), epochs=1, verbose=0, shuffle=False)
        if epoch == 0:
            Loop(loop, epochs(x, y), checkpoints=Checkpoints(tmp_path, "a run")).run()
            assert_same(values(loop), values(fitted), rtol=1e-5)
    Loop(again, epochs(x, y), checkpoints=Checkpoints(tmp_path, "a run")).run()
    assert_same(values(again), values(loop))
    Loop(longer, epochs(x, y), epochs=2, checkpoints=Checkpoints(tmp_path, "a run")).run()
    Loop(whole, epochs(x, y), epochs=2).run()
    assert_same(values(longer), values(whole))


@pytest.mark.parametrize("part", ["training", pytest.param("validation", marks=slow)])
def test_an_epoch_without_a_usable_batch_is_an_error(part):
    """Otherwise, a model that has learned nothing would have perfect metrics."""
    x, y = images()

    def batches(broken):
        def one(i, drawn):
            if broken:
                raise tfbig.SourceError(f"image {i}: is truncated.")
            return x[i], y[i]

        spec = tf.TensorSpec(x.shape[1:], x.dtype), tf.TensorSpec([], tf.int64)
        return lambda shard: datasets.dataset(one, len(x), 1, spec, shard=shard).batch(1)

    sets = [Epochs(IMAGES, batches(part == name)) for name in ("training", "validation")]
    errors, model = [], plain()
    with pytest.raises(tfbig.SourceError, match="epoch 1: no batch could be used"):
        Loop(model, *sets, left_out=lambda e: errors.append(str(e))).run()
    assert len(errors) == IMAGES
    assert model.optimizer.iterations == (0 if part == "training" else IMAGES)


@pytest.mark.slow
def test_dataset_continues_after_an_error():
    x, y = images()
    errors = []

    def batches(shard):
        def one(i, drawn):
            if i == 2:
                raise tfbig.SourceError("image 2: is truncated.")
            return x[i], y[i]

        spec = tf.TensorSpec(x.shape[1:], x.dtype), tf.TensorSpec([], tf.int64)
        return datasets.dataset(one, len(x), 1, spec, shard=shard).batch(1)

    model, whole = plain(), plain()
    broken = Epochs(IMAGES, batches)
    Loop(model, broken, broken, left_out=lambda e: errors.append(str(e))).run()
    assert errors == ["image 2: is truncated."] * 2
    left = [0, 1, 3, 4]

    def others(shard):
        items = [left[i] for i in shard.items(4, 1)]
        return tf.data.Dataset.from_tensor_slices((x[items], y[items])).batch(1)

    Loop(whole, Epochs(4, others)).run()
    assert_same(values(model), values(whole))


def test_original_error_is_raised_if_the_last_checkpoint_fails(tmp_path, capsys):
    x, y = images()
    x[3] = np.nan
    model = plain()
    checkpoints = Checkpoints(tmp_path / "file", "a run")
    (tmp_path / "file").write_text("")
    with pytest.raises(tfbig.NonFiniteError):
        Loop(model, epochs(x, y), checkpoints=checkpoints).run()
    assert "the last batches are not in a checkpoint: " in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("accumulate", [2, pytest.param(5, marks=slow)])
def test_accumulation_equals_a_large_batch(accumulate, float64):
    """The network has no BatchNormalization and no dropout, which depend on the batch."""

    def make():
        keras.utils.set_random_seed(3)
        image = keras.Input((None, None, 1))
        x = layers.GlobalAveragePooling2D()(layers.Conv2D(3, 3, activation="relu")(image))
        model = tfbig.stream(keras.Model(image, layers.Dense(2)(x)), strip_rows=6)
        compile_(model)
        return model

    small, large = make(), make()
    x, y = images()
    Loop(small, epochs(x, y), epochs=3, accumulate=accumulate).run()
    Loop(large, epochs(x, y, accumulate), epochs=3).run()
    assert_same(values(small), values(large), rtol=FLOAT64)
    assert small.optimizer.iterations == 3 * -(-IMAGES // accumulate)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "plain",
        *(pytest.param(name, marks=slow) for name in ("streamed", "masks", "bags", "patches")),
    ],
)
def test_failing_batch_does_not_change_the_model(name, tmp_path):
    model = MODELS[name]()
    train(model, tmp_path, num_epochs=1)
    before = values(model)
    x, y = images("masks" if name == "masks" else "classes")
    x[2] = np.nan
    loop = Loop(model, epochs(x, y), epochs=2, checkpoints=Checkpoints(tmp_path, "a run"))
    with pytest.raises(tfbig.NonFiniteError, match=r"epoch 2: the loss is nan.*Lower the learning"):
        loop.run()
    place = int(np.flatnonzero(np.random.default_rng(1).permutation(IMAGES) == 2)[0])
    assert (loop.position.epoch, loop.position.step) == (1, place)
    assert all(np.isfinite(v).all() for v in values(model))
    if place == 0:
        assert_same(values(model), before)
    stored = Checkpoints(tmp_path, "a run").newest().values["place"]
    assert (stored["epoch"], stored["step"]) == (1, place)


@pytest.fixture
def exhausted(monkeypatch):
    """Let strips run out of memory a number of times from a strip on; returns the counters."""

    def fail(times, after=40):
        left = {"times": times, "after": after}
        tick = progress.Meter.tick

        def failing(self, *arguments):
            left["after"] -= 1
            if left["after"] < 0 and left["times"] > 0:
                left["times"] -= 1
                raise MemoryError("no memory is left")
            tick(self, *arguments)

        monkeypatch.setattr(progress.Meter, "tick", failing)
        return left

    return fail


@slow
@pytest.mark.parametrize("name", ["streamed", "masks"])
def test_out_of_memory_retries_with_a_smaller_plan(name, tmp_path, exhausted, capsys, float64):
    expected = MODELS[name]()
    train(expected, validate=False)
    model, left = MODELS[name](), exhausted(1)
    train(model, tmp_path, validate=False)
    assert left["times"] == 0
    printed = capsys.readouterr().err
    assert re.search(r"out of memory: .*no memory is left; trying again with \d+ byt", printed)
    assert model._programs.settings.strip_rows == 3
    assert_same(values(model), values(expected), rtol=FLOAT64)


@pytest.mark.slow
def test_out_of_memory_twice_raises(tmp_path, exhausted):
    model = streamed()
    exhausted(2)
    with pytest.raises(tfbig.BudgetError, match=r"out of memory, even with \d+ bytes for strips"):
        train(model, tmp_path)
    exhausted(0)
    stored = Checkpoints(tmp_path, "a run").newest()
    resumed = streamed()
    train(resumed, tmp_path)
    assert stored.values["place"]["step"] < IMAGES
    assert_same(values(resumed), uninterrupted("streamed")[0])


class Breaking(tfbig.Source):
    """Image that cannot be read once `broken` is set."""

    broken = False

    def __init__(self, array, name):
        super().__init__(array.shape, array.dtype, name)
        self.array = array

    def _read(self, start, stop):
        if self.broken:
            raise tfbig.SourceError(f"{self.name}: is truncated.")
        return self.array[start:stop]


def images_of(x, y, left=()):
    """Return epochs of images by handle, in a new order for each epoch and without those in `left`, and the images."""
    sources = [Breaking(image, f"image {i}") for i, image in enumerate(x)]

    def batches(shard):
        order = np.random.default_rng(shard.epoch).permutation(len(x))
        items = [i for i in order[shard.items(len(x), 1)] if i not in left]
        handles = tf.constant([sources[i].handle for i in items])
        return tf.data.Dataset.from_tensor_slices((handles, y[items])).batch(1)

    return Epochs(len(x) - len(left), batches), sources


@pytest.mark.slow
def test_epoch_restarts_if_the_images_changed(tmp_path, capsys):
    """Later checkpoints have higher numbers, whatever the number of steps per epoch is."""
    x, y = images()
    model, few = plain(), Epochs(2, epochs(x[:2], y[:2]).batches, ["a", "b"])
    all_of_them = Epochs(IMAGES, epochs(x, y).batches, list("abcde"))
    checkpoints = Checkpoints(tmp_path, "a run")
    first = Loop(model, all_of_them, epochs=2, callbacks=[Rows(8)], checkpoints=checkpoints)
    with signals.on_signals(""), pytest.raises(tfbig.Stopped):
        first.run()
    again = plain()
    then = Loop(again, few, epochs=2, callbacks=[rows := Rows()], checkpoints=checkpoints)
    then.run()
    message = "the images or the batch size have changed: epoch 2 starts again"
    assert message in capsys.readouterr().err
    assert [row["epoch"] for row in rows.rows] == [0, 1]
    assert again.optimizer.iterations == 8 + 2
    assert checkpoints.newest().values["place"]["epoch"] == 2
    assert "starts again" not in capsys.readouterr().err


@slow
@pytest.mark.parametrize("accumulate", [1, 2])
def test_unreadable_image_is_skipped(accumulate):
    """Equal to training without the image, except for the boundaries of accumulated groups."""
    x, y = images()
    x = (x * 30 + 100).astype("uint8")
    errors, broken, whole = [], streamed(), streamed()
    training, sources = images_of(x, y)
    sources[2].broken = True
    validation, others = images_of(x, y)
    others[4].broken = True
    rows = Rows()
    Loop(
        broken,
        training,
        validation,
        2,
        callbacks=[rows],
        accumulate=accumulate,
        left_out=lambda e: errors.append(str(e)),
    ).run()
    assert errors == ["image 2: is truncated.", "image 4: is truncated."] * 2
    assert all(np.isfinite(v).all() for v in values(broken))
    if accumulate == 1:
        left = images_of(x, y, left=(2,))
        Loop(whole, left[0], images_of(x, y, left=(4,))[0], 2, callbacks=[other := Rows()]).run()
        assert_same(values(broken), values(whole))
        assert rows.rows == other.rows
    assert broken.optimizer.iterations == 2 * (4 if accumulate == 1 else 3)


def test_unreadable_image_raises_by_default(tmp_path):
    x, y = images()
    training, sources = images_of((x * 30 + 100).astype("uint8"), y)
    sources[2].broken = True
    place = int(np.flatnonzero(np.random.default_rng(0).permutation(IMAGES) == 2)[0])
    loop = Loop(streamed(), training, checkpoints=Checkpoints(tmp_path, "a run"))
    with pytest.raises(tfbig.SourceError, match=r"^image 2: is truncated\.$"):
        loop.run()
    assert Checkpoints(tmp_path, "a run").newest().values["place"]["step"] == place


def test_refuses_accumulation_if_the_optimizer_steps_inside():
    x, y = images()
    with pytest.raises(
        ValueError, match=r"accumulate=2: .* updates the weights inside a training step"
    ):
        Loop(patchgd_model(1), epochs(x, y), accumulate=2)


def test_refuses_two_resumable_callbacks_of_one_class():
    x, y = images()
    with pytest.raises(ValueError, match="expected at most one of each class"):
        Loop(plain(), epochs(x, y), callbacks=[Rows(), Rows()])


def test_refuses_checkpoints_of_another_model(tmp_path):
    train(plain(), tmp_path)
    with pytest.raises(
        tfbig.SourceError, match="has 24 variables; the model and its optimizer have 23"
    ):
        train(plain("masks"), tmp_path)


def test_checkpoint_interval(tmp_path):
    now = [0.0]

    def clock():
        now[0] += 1.0
        return now[0]

    written = []
    checkpoints = Checkpoints(tmp_path, "a run")
    write = checkpoints.write
    checkpoints.write = lambda number, *state: (written.append(number), write(number, *state))
    x, y = images()
    Loop(plain(), epochs(x, y), checkpoints=checkpoints, every_seconds=2.0, clock=clock).run()
    assert written == [2, 4, 5]
