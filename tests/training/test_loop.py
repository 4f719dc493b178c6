"""The training loop: as `fit`, and as if nothing had happened when it ends anywhere and goes on."""

import re
from contextlib import suppress

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
    """A network with dropout and BatchNormalization; every call makes the same."""
    keras.utils.set_random_seed(3)
    image = keras.Input((None, None, 1))
    x = layers.Conv2D(3, 3, padding="same", activation="elu")(image)
    x = layers.BatchNormalization(momentum=0.9)(x)
    x = layers.SpatialDropout2D(0.2, seed=5)(x)
    if kind == "masks":
        return keras.Model(image, layers.Conv2D(1, 1, activation="sigmoid")(x))
    x = layers.GlobalAveragePooling2D()(x)
    return keras.Model(image, layers.Dense(2)(layers.Dropout(0.3, seed=6)(x)))


def pictures(kind="classes"):
    random = np.random.default_rng(0)
    x = random.normal(size=(IMAGES, SIDE, SIDE, 1)).astype(keras.config.floatx())
    y = (x > 0.5).astype("uint8") if kind == "masks" else random.integers(0, 2, IMAGES)
    return x, y


def epochs(x, y, batch_size=1):
    """Batches in another order each epoch."""

    def batches(shard):
        order = np.random.default_rng(shard.epoch).permutation(len(x))
        own = order[shard.items(len(x), batch_size)]
        return tf.data.Dataset.from_tensor_slices((x[own], y[own])).batch(batch_size)

    return Epochs(-(-len(x) // batch_size), batches)


def in_order(x, y):
    """What validates: pairs of images."""

    def batches(shard):
        own = shard.items(len(x), 2)
        return tf.data.Dataset.from_tensor_slices((x[own], y[own])).batch(2)

    return Epochs(-(-len(x) // 2), batches)


def plain(kind="classes"):
    model = network(kind)
    compile_(model, kind)
    return model


def streamed(kind="classes"):
    model = tfbig.stream(network(kind), strip_rows=6)
    compile_(model, kind)
    return model


def of_bags():
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


def by_patches(accumulate=None):
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
    """A history; asks to stop after so many batches."""

    def __init__(self, fail_after=None):
        super().__init__()
        self.left = fail_after

    def on_train_batch_end(self, batch, logs=None):
        if self.left is not None:
            self.left -= 1
            if self.left == 0:
                signals.request()


MODELS = {
    "plain": plain,
    "streamed": streamed,
    "masks": lambda: streamed("masks"),
    "bags": of_bags,
    "patches": by_patches,
    "patches that step inside": lambda: by_patches(2),
}


def train(model, folder=None, callback=None, accumulate=1, num_epochs=2, **options):
    x, y = pictures("masks" if model.loss == "binary_crossentropy" else "classes")
    checkpoints = None if folder is None else Checkpoints(folder, "a run", lambda _: None)
    loop = Loop(
        model,
        epochs(x, y),
        in_order(x, y),
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


slow = pytest.mark.slow
QUICK = [("streamed", 1), ("masks", 3), ("patches that step inside", 1)]
SLOW = [("plain", 1), ("masks", 1), ("bags", 1), ("patches", 1), ("plain", 2), ("patches", 2)]


@pytest.mark.parametrize(
    ("name", "accumulate"), [*QUICK, *(pytest.param(*case, marks=slow) for case in SLOW)]
)
def test_stopped_after_some_batches_it_goes_on_as_if_nothing_had_happened(
    name, accumulate, tmp_path
):
    whole, rows = MODELS[name](), Rows()
    train(whole, callback=rows, accumulate=accumulate)
    again, seen = None, Rows()
    for _ in range(4):  # after 3, 6 and 9 batches of 10
        again, seen = MODELS[name](), Rows(fail_after=3)
        with signals.on_signals(""), suppress(tfbig.Stopped):
            train(again, tmp_path, seen, accumulate)
            break
    assert_same(values(again), values(whole))
    assert seen.rows == rows.rows


@pytest.mark.parametrize(
    "name", ["streamed", *(pytest.param(name, marks=slow) for name in ("plain", "masks", "bags"))]
)
def test_it_trains_as_fit_does(name):
    loop, fitted = MODELS[name](), MODELS[name]()
    rows = Rows()
    train(loop, callback=rows)
    x, y = pictures("masks" if name == "masks" else "classes")
    history = {}
    for epoch in range(2):
        found = fitted.fit(
            epochs(x, y).batches(Shard(epoch)),
            validation_data=in_order(x, y).batches(Shard()),
            shuffle=False,
            verbose=0,
        )
        history = {key: value[-1] for key, value in found.history.items()}
    assert_same(values(loop), values(fitted), rtol=0 if name != "plain" else 1e-5)
    assert rows.rows[-1] == pytest.approx({"epoch": 1, **history}, rel=1e-5)


class StopsAt(keras.callbacks.Callback):
    """Ends training after so many batches, or epochs."""

    def __init__(self, batches=None, epochs=None):
        super().__init__()
        self.batches, self.epochs = batches, epochs

    def on_train_batch_end(self, batch, logs=None):
        if self.batches == batch + 1:
            self.model.stop_training = True

    def on_epoch_end(self, epoch, logs=None):
        if self.epochs == epoch + 1:
            self.model.stop_training = True


def test_a_callback_ends_it_as_it_ends_fit(tmp_path):
    x, y = pictures()
    loop, fitted = plain(), plain()
    kept = Checkpoints(tmp_path, "a run")
    options = {"epochs": 3, "checkpoints": kept, "accumulate": 1}
    Loop(loop, epochs(x, y), callbacks=[StopsAt(batches=3), rows := Rows()], **options).run()
    fitted.fit(
        epochs(x, y).batches(Shard()), callbacks=[StopsAt(batches=3)], verbose=0, shuffle=False
    )
    assert_same(values(loop), values(fitted), rtol=1e-5)
    assert len(rows.rows) == 1
    again = plain()
    Loop(again, epochs(x, y), callbacks=[Rows()], **options).run()
    assert_same(values(again), values(loop))


def test_accumulated_gradients_count_where_a_callback_ends_it(tmp_path):
    x, y = pictures()
    model = plain()
    Loop(model, epochs(x, y), callbacks=[StopsAt(batches=3)], accumulate=2).run()
    assert model.optimizer.iterations == 2
    other = plain()
    Loop(other, epochs(x, y), epochs=3, callbacks=[StopsAt(epochs=2)]).run()
    assert other.optimizer.iterations == 2 * IMAGES


def test_averages_of_weights_are_what_it_ends_with(tmp_path):
    """Resumed after its end it has them too; with more epochs it goes on from the weights themselves."""
    x, y = pictures()

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


def test_a_dataset_that_fails_goes_on_after_it():
    x, y = pictures()
    told = []

    def batches(shard):
        def one(i, drawn):
            if i == 2:
                raise tfbig.SourceError("image 2: is truncated.")
            return x[i], y[i]

        spec = tf.TensorSpec(x.shape[1:], x.dtype), tf.TensorSpec([], tf.int64)
        return datasets.dataset(one, len(x), 1, spec, shard=shard).batch(1)

    model, whole = plain(), plain()
    broken = Epochs(IMAGES, batches)
    Loop(model, broken, broken, left_out=lambda e: told.append(str(e))).run()
    assert told == ["image 2: is truncated."] * 2
    left = [0, 1, 3, 4]

    def others(shard):
        own = [left[i] for i in shard.items(4, 1)]
        return tf.data.Dataset.from_tensor_slices((x[own], y[own])).batch(1)

    Loop(whole, Epochs(4, others)).run()
    assert_same(values(model), values(whole))


def test_what_ends_it_is_told_where_no_checkpoint_can_be_written_either(tmp_path, capsys):
    x, y = pictures()
    x[3] = np.nan
    model = plain()
    kept = Checkpoints(tmp_path / "file", "a run")
    (tmp_path / "file").write_text("")
    with pytest.raises(tfbig.NonFiniteError):
        Loop(model, epochs(x, y), checkpoints=kept).run()
    assert "no checkpoint of the last batches: " in capsys.readouterr().err


@pytest.mark.parametrize("accumulate", [2, pytest.param(5, marks=slow)])
def test_accumulated_batches_are_one_large_batch(accumulate, float64):
    """Without BatchNormalization and dropout, which see batches."""

    def make():
        keras.utils.set_random_seed(3)
        image = keras.Input((None, None, 1))
        x = layers.GlobalAveragePooling2D()(layers.Conv2D(3, 3, activation="relu")(image))
        model = tfbig.stream(keras.Model(image, layers.Dense(2)(x)), strip_rows=6)
        compile_(model)
        return model

    small, large = make(), make()
    x, y = pictures()
    Loop(small, epochs(x, y), epochs=3, accumulate=accumulate).run()
    Loop(large, epochs(x, y, accumulate), epochs=3).run()
    assert_same(values(small), values(large), rtol=FLOAT64)
    assert small.optimizer.iterations == 3 * -(-IMAGES // accumulate)


@pytest.mark.parametrize(
    "name",
    [
        *("streamed", "patches"),
        *(pytest.param(name, marks=slow) for name in ("plain", "masks", "bags")),
    ],
)
def test_a_batch_that_fails_leaves_the_model_as_it_was(name, tmp_path, monkeypatch):
    model = MODELS[name]()
    train(model, tmp_path, num_epochs=1)
    before = values(model)
    x, y = pictures("masks" if name == "masks" else "classes")
    x[2] = np.nan
    loop = Loop(model, epochs(x, y), epochs=2, checkpoints=Checkpoints(tmp_path, "a run"))
    with pytest.raises(tfbig.NonFiniteError, match=r"epoch 2: the loss is nan.*Lower the learning"):
        loop.run()
    place = int(np.flatnonzero(np.random.default_rng(1).permutation(IMAGES) == 2)[0])
    assert (loop.place.epoch, loop.place.step) == (1, place)
    assert all(np.isfinite(v).all() for v in values(model))
    if place == 0:
        assert_same(values(model), before)
    kept = Checkpoints(tmp_path, "a run").newest()
    assert (kept.values["place"]["epoch"], kept.values["place"]["step"]) == (1, place)


@pytest.fixture
def exhausted(monkeypatch):
    """Strips that find no memory, so many times from a strip on; gives what was left."""

    def fail(times, after=40):
        left = {"times": times, "after": after}
        tick = progress.Meter.tick

        def failing(self, *given):
            left["after"] -= 1
            if left["after"] < 0 and left["times"] > 0:
                left["times"] -= 1
                raise MemoryError("no memory is left")
            tick(self, *given)

        monkeypatch.setattr(progress.Meter, "tick", failing)
        return left

    return fail


@pytest.mark.parametrize("name", ["streamed", pytest.param("masks", marks=slow)])
def test_out_of_memory_a_smaller_plan_is_tried_once(name, tmp_path, exhausted, capsys, float64):
    expected = MODELS[name]()
    train(expected)
    model, left = MODELS[name](), exhausted(1)
    train(model, tmp_path)
    assert left["times"] == 0
    told = capsys.readouterr().err
    assert re.search(r"out of memory: .*no memory is left; once more with \d+ bytes", told)
    assert model._programs.settings.strip_rows == 3
    assert_same(values(model), values(expected), rtol=FLOAT64)


def test_out_of_memory_again_is_a_clear_error(tmp_path, exhausted):
    model = streamed()
    exhausted(2)
    with pytest.raises(tfbig.BudgetError, match=r"out of memory, also with \d+ bytes for strips"):
        train(model, tmp_path)
    exhausted(0)
    kept = Checkpoints(tmp_path, "a run").newest()
    again, whole = streamed(), streamed()
    train(again, tmp_path)
    train(whole)
    assert kept.values["place"]["step"] < IMAGES
    assert_same(values(again), values(whole))


class Breaking(tfbig.Source):
    """An image that cannot be read from some moment on."""

    broken = False

    def __init__(self, array, name):
        super().__init__(array.shape, array.dtype, name)
        self.array = array

    def _read(self, start, stop):
        if self.broken:
            raise tfbig.SourceError(f"{self.name}: is truncated.")
        return self.array[start:stop]


def images_of(x, y, left=()):
    """Five images by handle, in an order of each epoch; `left` are not there."""
    sources = [Breaking(image, f"image {i}") for i, image in enumerate(x)]

    def batches(shard):
        order = np.random.default_rng(shard.epoch).permutation(len(x))
        own = [i for i in order[shard.items(len(x), 1)] if i not in left]
        handles = tf.constant([sources[i].handle for i in own])
        return tf.data.Dataset.from_tensor_slices((handles, y[own])).batch(1)

    return Epochs(len(x) - len(left), batches), sources


def test_with_other_images_than_before_the_epoch_begins_again(tmp_path, capsys):
    """And checkpoints after that are newer, whatever an epoch has now."""
    x, y = pictures()
    model, few = plain(), Epochs(2, epochs(x[:2], y[:2]).batches, ["a", "b"])
    all_of_them = Epochs(IMAGES, epochs(x, y).batches, list("abcde"))
    kept = Checkpoints(tmp_path, "a run")
    first = Loop(model, all_of_them, epochs=2, callbacks=[Rows(8)], checkpoints=kept)
    with signals.on_signals(""), pytest.raises(tfbig.Stopped):
        first.run()
    again = plain()
    then = Loop(again, few, epochs=2, callbacks=[rows := Rows()], checkpoints=kept)
    then.run()
    told = "the images, or how many are a batch, are others than before: epoch 2 begins again"
    assert told in capsys.readouterr().err
    assert [row["epoch"] for row in rows.rows] == [0, 1]
    assert again.optimizer.iterations == 8 + 2
    assert kept.newest().values["place"]["epoch"] == 2
    assert "begins again" not in capsys.readouterr().err


@pytest.mark.parametrize("accumulate", [1, pytest.param(2, marks=slow)])
def test_an_image_that_cannot_be_read_any_more_is_left_out(accumulate):
    """As if it had never been there, but for where groups of accumulated batches end."""
    x, y = pictures()
    x = (x * 30 + 100).astype("uint8")
    told, broken, whole = [], streamed(), streamed()
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
        left_out=lambda e: told.append(str(e)),
    ).run()
    assert told == ["image 2: is truncated.", "image 4: is truncated."] * 2
    assert all(np.isfinite(v).all() for v in values(broken))
    if accumulate == 1:
        left = images_of(x, y, left=(2,))
        Loop(whole, left[0], images_of(x, y, left=(4,))[0], 2, callbacks=[other := Rows()]).run()
        assert_same(values(broken), values(whole))
        assert rows.rows == other.rows
    assert broken.optimizer.iterations == 2 * (4 if accumulate == 1 else 3)


def test_an_image_that_cannot_be_read_ends_training_by_default(tmp_path):
    x, y = pictures()
    training, sources = images_of((x * 30 + 100).astype("uint8"), y)
    sources[2].broken = True
    place = int(np.flatnonzero(np.random.default_rng(0).permutation(IMAGES) == 2)[0])
    loop = Loop(streamed(), training, checkpoints=Checkpoints(tmp_path, "a run"))
    with pytest.raises(tfbig.SourceError, match=r"^image 2: is truncated\.$"):
        loop.run()
    assert Checkpoints(tmp_path, "a run").newest().values["place"]["step"] == place


def test_steps_without_halves_do_not_add_up():
    x, y = pictures()
    with pytest.raises(ValueError, match=r"accumulate=2: .* steps inside a training step"):
        Loop(by_patches(1), epochs(x, y), accumulate=2)


def test_two_callbacks_of_a_kind_cannot_both_be_remembered():
    x, y = pictures()
    with pytest.raises(ValueError, match="expected one of a kind"):
        Loop(plain(), epochs(x, y), callbacks=[Rows(), Rows()])


def test_a_model_of_another_shape_is_refused(tmp_path):
    train(plain(), tmp_path)
    with pytest.raises(
        tfbig.SourceError, match="has 24 variables, the model and its optimizer have 23"
    ):
        train(plain("masks"), tmp_path)


def test_a_checkpoint_within_an_epoch_every_so_many_seconds(tmp_path):
    now = [0.0]

    def clock():
        now[0] += 1.0
        return now[0]

    written = []
    kept = Checkpoints(tmp_path, "a run")
    write = kept.write
    kept.write = lambda number, *state: (written.append(number), write(number, *state))
    x, y = pictures()
    Loop(plain(), epochs(x, y), checkpoints=kept, every_seconds=2.0, clock=clock).run()
    assert written == [2, 4, 5]
