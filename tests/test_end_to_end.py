"""The experiment in recipes/experiments/end_to_end: its images, its ways, its plan and its figures."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from samples import ROOT
from scipy import stats
from skimage import data

import tfbig
from recipes.experiments.end_to_end import __main__ as command
from recipes.experiments.end_to_end import figures, images, networks, parts, plan, slides, training

TASKS = pytest.mark.parametrize("task", images.TASKS)
SMALL = plan.Setting(
    train=32, validation=8, test=6, seconds=5, head_seconds=6, pretraining=1, slides=2
)


# ----------------------------------------------------------------------------------------- images


@TASKS
def test_labels_are_balanced_and_the_same_seed_gives_the_same_images(task: str) -> None:
    one, again = (images.make(task, "train", 6, 3) for _ in range(2))
    assert one.labels[:, 0].tolist() == [0, 1] * 3
    assert one.pixels.shape == (6, 256, 256, 3)
    assert one.pixels.dtype == np.uint8
    assert np.array_equal(one.pixels, again.pixels)
    assert np.array_equal(one.marked, again.marked)
    others = [images.make(task, "train", 6, 4), images.make(task, "test", 6, 3)]
    assert not any(np.array_equal(one.pixels, other.pixels) for other in others)


def test_parts_share_no_digit_and_no_pixel() -> None:
    places = np.arange(512 * 512).reshape(512, 512)
    parts = [set(images.region(places, part).ravel().tolist()) for part in images.PARTS]
    assert set.union(*parts) == set(places.ravel().tolist())
    assert not any(a & b for a, b in itertools.combinations(parts, 2))
    for name in ("keys", "others"):
        drawn = [
            {digit.tobytes() for digit in getattr(images.material(part), name)}
            for part in images.PARTS
        ]
        assert all(drawn)
        assert not any(a & b for a, b in itertools.combinations(drawn, 2))


def test_tiles_are_cut_row_by_row() -> None:
    made = images.make("needle", "train", 2, 0)
    assert np.array_equal(made.tiles[1, 8 * 2 + 5], made.pixels[1, 64:96, 160:192])


def test_truth_of_needle() -> None:
    made = images.make("needle", "validation", 20, 0)
    assert ((made.marked == 2).sum((1, 2)) == made.labels[:, 0]).all()
    assert ((made.marked > 0).sum((1, 2)) == images.NEEDLES).all()


def test_truth_of_count() -> None:
    made = images.make("count", "validation", 40, 0)
    excess = (made.marked == 2).sum((1, 2)) - images.COUNTED // 2
    assert np.array_equal(excess > 0, made.labels[:, 0] == 1)
    assert abs(excess).min() == images.MARGIN
    assert ((made.marked > 0).sum((1, 2)) == images.COUNTED).all()


def test_truth_of_texture() -> None:
    """Grass has the marked tiles of label 1; no grey value of a texture is more frequent than another."""
    made = images.make("texture", "train", 10, 0)
    assert (made.marked == 2).sum((1, 2)).tolist() == [0, images.PATCHES] * 5
    shares = [
        np.histogram(images.flat(texture), 8, (-1, 1))[0] / 512**2
        for texture in (data.grass(), data.gravel())
    ]
    assert abs(np.array(shares) - 1 / 8).max() < 0.02  # an eighth, but for whole grey values


@pytest.mark.parametrize("seed", range(5))
def test_tiles_do_not_tell_the_relation(seed: int) -> None:
    """From the same random numbers, the images of both labels are made of the same tiles, bit by bit."""
    of = images.material("train")
    above, beside = (images.relation(of, label, np.random.default_rng(seed)) for label in (0, 1))
    assert sorted(t.tobytes() for t in above[0]) == sorted(t.tobytes() for t in beside[0])
    assert near_pairs(above[1]) == [[2, 0]] * images.PAIRS
    assert near_pairs(beside[1]) == [[0, 2]] * images.PAIRS


def near_pairs(marks: np.ndarray) -> list[list[int]]:
    """Return the rows and columns between marked tiles that are less than three apart."""
    places = np.argwhere(marks.reshape(8, 8) == 2)
    assert len(places) == 2 * images.PAIRS
    distances = [abs(a - b) for a, b in itertools.combinations(places, 2)]
    return [each.tolist() for each in distances if each.max() < 3]


def test_slides_have_tissue_of_their_label_on_a_tenth() -> None:
    made, labels = slides.make("test", 2, 0)
    again, _ = slides.make("test", 2, 0)
    assert labels.tolist() == [[0], [1]]
    for slide, same in zip(made, again, strict=True):
        pixels = slide.read(0, slides.SIDE)
        assert np.array_equal(pixels, same.read(0, slides.SIDE))
        assert np.array_equal(pixels[3:2000:], slide.read(3, 2000))
        rows, columns = (slice(n, n + 1280) for n in (slide.row, slide.column))
        assert np.array_equal(pixels[rows, columns], slide.tissue)
        outside = (pixels != slides.GLASS).any(-1)
        outside[rows, columns] = False
        assert not outside.any()
        assert slide.mask.mean() == pytest.approx(0.1, abs=0.005)
        masked = tfbig.masked(slide, slide.mask, slides.GLASS)
        assert np.array_equal(masked.read(0, slides.SIDE), pixels)
        assert masked.background.share == slide.mask.mean()
    pieces = images.make("relation", "test", 2 * slides.PIECES**2, 0).pixels
    assert np.array_equal(made[1].tissue[:256, 256:512], pieces[3])  # the second with label 1


def test_slides_are_let_go() -> None:
    run = plan.Run("final", plan.SLIDES, "skipped", 1e-3, 0, "attention")
    part = parts.training(run, SMALL, None)
    handle = str(part.stains[0, 1])
    assert tfbig.sources.resolve(handle).background is not None
    parts.release(part)
    with pytest.raises(tfbig.SourceError):
        tfbig.sources.resolve(handle)


def test_stains() -> None:
    """With factors of 1 an image stays as it is; the density of one stain alone is multiplied."""
    from skimage.color import hed2rgb, rgb2hed

    tissue = data.immunohistochemistry()[:64, :64]
    assert abs(images.stained(tissue, (1, 1, 1)).astype(int) - tissue).max() <= 1
    light = np.rint(255 * hed2rgb(np.full((4, 4, 3), (0.05, 0.02, 0.03)))).astype("uint8")
    factors = np.array(images.OTHER_STAIN)
    found = rgb2hed(images.stained(light, factors)) / rgb2hed(light)
    half_a_grey_value = 0.02
    np.testing.assert_allclose(found[0, 0], factors, rtol=2 * half_a_grey_value)


# --------------------------------------------------------------------------------------- networks


@pytest.mark.parametrize("head", plan.HEADS)
def test_ways_have_the_same_parameters(head: str) -> None:
    whole, tiles = networks.whole_model(head), networks.tile_model(head)
    shapes = [sorted(map(str, (w.shape for w in m.trainable_weights))) for m in (whole, tiles)]
    assert whole.count_params() == tiles.count_params()
    assert shapes[0] == shapes[1]
    head_alone = networks.bag_head(head).count_params()
    assert tiles.encoder.count_params() == 185232
    assert tiles.count_params() == 185232 + head_alone


def test_receptive_field() -> None:
    """With weights that cannot cancel, a position of the map depends on 151 x 151 pixels."""
    network = networks.trunk()
    for layer in network.layers:
        if isinstance(layer, keras.layers.Conv2D):
            layer.set_weights([np.ones_like(layer.get_weights()[0]) / 100])
    image = tf.Variable(np.full((1, 320, 320, 3), 255, "float32"))
    with tf.GradientTape() as tape:
        middle = network(image)[0, 10, 10, 0]
    depends = np.argwhere(np.asarray(tape.gradient(middle, image))[0, :, :, 0] != 0)
    assert (depends.max(0) - depends.min(0) + 1).tolist() == [151, 151]


def test_contrastive_loss() -> None:
    """The equation of SimCLR, pair by pair."""
    z = np.random.default_rng(0).normal(size=(6, 4))
    unit = z / np.linalg.norm(z, axis=1, keepdims=True)
    similar = np.exp(unit @ unit.T / networks.TEMPERATURE)
    terms = [
        -np.log(similar[i, (i + 3) % 6] / (similar[i].sum() - similar[i, i])) for i in range(6)
    ]
    loss = networks.contrastive_loss(tf.constant(z, tf.float32))
    assert float(loss) == pytest.approx(np.mean(terms), rel=1e-5)


def test_views_of_tiles() -> None:
    """Without turning, a view differs from its tile by a shift and a stain, each tile by its own."""
    tiles = images.make("needle", "train", 2, 0).tiles[0, :4]
    one, again = (networks.view(tiles, False, np.random.default_rng(0)) for _ in range(2))
    assert one.shape == tiles.shape
    assert np.array_equal(one, again)
    assert not np.array_equal(one, networks.view(tiles, True, np.random.default_rng(0)))


# --------------------------------------------------------------------------------------- training


class Ticks:
    """A clock that goes on by half a second whenever it is asked, so that a step takes half a second."""

    def __init__(self, stop: float = np.inf) -> None:
        self.now, self.stop = 0.0, stop

    def __call__(self) -> float:
        self.now += 0.5
        if self.now > self.stop:
            raise KeyboardInterrupt
        return self.now


def frozen(phase: str = "pilot", augmented: bool = False) -> plan.Run:
    return plan.Run(phase, "count", "frozen", 1e-2, 0, "mean", "pictures", augmented)


def random_part(number: int, stains: int = 1) -> parts.Part:
    rng = np.random.default_rng(number)
    features = rng.normal(size=(stains, number, 64, 64)).astype("float32")
    return parts.Part(features, (np.arange(number)[:, None] % 2).astype("float32"))


def test_a_run_that_is_interrupted_goes_on_as_if_it_had_not_been(tmp_path: Path) -> None:
    data = (random_part(96, stains=3), random_part(16))
    run = frozen(augmented=True)

    def begun(name: str, clock: Ticks) -> training.Training:
        return training.Training(run, 6.0, *data, tmp_path / name, clock)

    whole = begun("whole", Ticks())
    looks = whole.go_on()
    with pytest.raises(KeyboardInterrupt):
        begun("parts", Ticks(stop=8.5)).go_on()
    resumed = begun("parts", Ticks())
    assert 0 < resumed.progress.spent < 6
    assert resumed.go_on() == looks
    for a, b in zip(
        whole.variables() + whole.best, resumed.variables() + resumed.best, strict=True
    ):
        assert np.array_equal(a, b)


def test_looks_are_taken_at_twelfths_of_the_budget_and_after_powers_of_two_epochs(
    tmp_path: Path,
) -> None:
    data = (random_part(96), random_part(16))
    looks = training.Training(frozen(), 12.0, *data, tmp_path, Ticks()).go_on()
    assert {1, 2, 4, 8} <= {x["epochs"] for x in looks}
    assert {float(second) for second in range(1, 13)} <= {x["seconds"] for x in looks}
    assert looks[-1]["steps"] == 24


def test_a_run_ends_after_three_perfect_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = iter([1.0, 0.9, 1.0, 1.0, 1.0])
    monkeypatch.setattr(training, "auc", lambda *_: next(found))
    one = training.Training(frozen(), 100.0, random_part(64), random_part(8), tmp_path, Ticks())
    looks = one.go_on()
    assert [look["auc"] for look in looks] == [1, 0.9, 1, 1, 1]
    line = {"looks": looks}
    assert figures.at_epoch(line, 1) == 1
    assert figures.at_epoch(line, 2) == 0.9
    assert figures.at_epoch(line, 4096) == 1  # it ended before


def test_warming_changes_nothing(tmp_path: Path) -> None:
    one = training.Training(frozen(), 1.0, random_part(32), random_part(8), tmp_path)
    before = one.variables()
    one.warm()
    assert all(map(np.array_equal, before, one.variables()))


@pytest.mark.parametrize("phase", ["pilot", "final"])
def test_only_a_final_run_sees_the_test_images_and_once(
    phase: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    make = images.make

    def recorded(task: str, part: str, number: int, seed: int) -> images.Images:
        seen.append((part, number))
        return make(task, part, number, seed)

    monkeypatch.setattr(images, "make", recorded)
    monkeypatch.setattr(parts, "encoded", lambda *_: (networks.encoder(), 2.0))
    monkeypatch.setattr(parts, "features", lambda _, made: np.zeros((len(made.labels), 64, 64)))
    setting = replace(SMALL, head_seconds=0.02)
    found = training.finish(frozen(phase), setting, tmp_path)
    assert seen == [("train", 32), ("validation", 8), *[("test", 6)] * (phase == "final")]
    assert {"test", "other_stain"} <= found.keys() or phase == "pilot"
    assert found["pretraining"] == 2.0
    assert not list((tmp_path / "states").rglob("*.npz"))  # nothing to continue


def test_a_quarter_of_the_tiles_is_drawn() -> None:
    run = plan.Run("pilot", "count", "sampling", 1e-3, 0, "mean")
    made = images.make("count", "train", 2, 0)
    part = parts.part_of(run, made, None)
    drawn = parts.batch_of(run, part, np.arange(2), np.random.default_rng(0))
    assert drawn.shape == (2, 16, 32, 32, 3)
    for bag, tiles in zip(drawn.numpy().astype("uint8"), made.tiles, strict=True):
        assert len({tile.tobytes() for tile in bag} & {tile.tobytes() for tile in tiles}) == 16


def test_annotated_tiles_have_what_they_say() -> None:
    """Digits are darker than tissue, and textures change it everywhere."""
    of = images.material("train")
    tiles, classes = images.annotated(of, 200, np.random.default_rng(0))
    assert tiles.shape == (200, 32, 32, 3)
    assert tiles.dtype == np.uint8
    assert set(classes) == set(range(len(images.ANNOTATIONS)))
    again, same = images.annotated(of, 200, np.random.default_rng(0))
    assert np.array_equal(tiles, again) and np.array_equal(classes, same)
    ink = abs(tiles.astype(int) - np.array(images.INK)).max(-1).min((1, 2)) < 45
    is_digit = np.isin(classes, [1, 2])
    assert ink[is_digit].mean() > 0.9 > 0.5 > ink[~is_digit].mean()


def test_every_epoch_has_another_order() -> None:
    one, two = (training.order_of_epoch(frozen(), epoch, 70) for epoch in (0, 1))
    assert one.shape == (2, 32)
    assert len(set(one.ravel())) == 64
    assert not np.array_equal(one, two)


@pytest.mark.slow
@pytest.mark.parametrize("encoder", plan.ENCODERS)
def test_an_encoder_is_trained_once(
    encoder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = replace(frozen(), encoder=encoder)
    first, seconds = parts.encoded(run, SMALL, tmp_path)
    for name in (f"trained_by_{each}" for each in plan.ENCODERS):
        monkeypatch.delattr(networks, name)
    again, same = parts.encoded(run, SMALL, tmp_path)
    assert seconds >= SMALL.pretraining
    assert same == pytest.approx(seconds, abs=0.05)
    assert all(map(np.array_equal, first.get_weights(), again.get_weights()))
    untrained = networks.encoder().get_weights()
    assert not all(map(np.array_equal, first.get_weights(), untrained))


@pytest.mark.slow
def test_features_have_a_stain_for_each_image() -> None:
    network = networks.encoder()
    setting = replace(SMALL, train=2)
    part = parts.training(frozen(augmented=True), setting, network)
    assert part.stains.shape == (parts.VIEWS_OF_FEATURES, 2, 64, 64)
    own = parts.features(network, images.make("count", "train", 2, 0))
    assert np.array_equal(part.stains[0], own)
    assert not np.array_equal(part.stains[0], part.stains[1])
    drawn = parts.batch_of(frozen(augmented=True), part, np.arange(2), np.random.default_rng(0))
    assert drawn.shape == (2, 64, 64)


# ------------------------------------------------------------------------------------------- plan


def pilot_lines(best: float = 1e-3) -> list[plan.Line]:
    """Return lines of all pilots, of which one rate was the best, with the seed as spread."""
    return [
        {
            **asdict(run),
            "validation": 0.9 if run.rate == best else 0.6 + run.seed / 1e4,
            "looks": [
                {"seconds": float(n), "steps": n, "epochs": float(n), "auc": 0.5 + n / 50}
                for n in (1, 2, 3, 4, 5)
            ],
        }
        for run in plan.pilots()
    ]


def test_pilots_are_different_and_of_other_seeds() -> None:
    runs = plan.pilots()
    assert len(set(runs)) == len(runs)
    assert not set(plan.PILOT_SEEDS) & set(plan.FINAL_SEEDS)
    assert len(plan.FINAL_SEEDS) >= 5


def test_finals_have_what_the_pilots_chose() -> None:
    lines = pilot_lines()
    runs = plan.finals(lines)
    assert {run.rate for run in runs} == {1e-3}
    assert {run.phase for run in runs} == {"final"}
    plain = [run for run in runs if not run.augmented]
    assert len(plain) == len(plan.pairs()) * len(plan.FINAL_SEEDS)
    assert {run.task for run in runs if run.augmented} == set(plan.AUGMENTED)


def test_of_equal_pilots_the_fastest_is_chosen() -> None:
    lines = pilot_lines(best=3e-4)
    for line in lines:
        if line["rate"] == 3e-3:
            line["validation"] = 0.9
            line["looks"] = line["looks"][:3]
    assert {run.rate for run in plan.finals(lines)} == {3e-3}


def test_slides_have_ways_of_their_own() -> None:
    assert set(plan.pairs(["count", "slides"])) == {
        *(("count", way) for way in ("frozen", "sampling", "tiles", "whole")),
        *(("slides", way) for way in ("skipped", "computed")),
    }
    both = plan.finals(pilot_lines(), ["slides"])
    assert len(both) == 2 * len(plan.FINAL_SEEDS)
    assert len({replace(run, way="") for run in both}) == len(plan.FINAL_SEEDS)


def test_a_way_is_not_final_before_all_of_its_pilots_are() -> None:
    lines = [line for line in pilot_lines() if plan.run_of(line) != plan.pilots()[-1]]
    last = plan.pilots()[-1]
    assert plan.chosen(lines, last.task, last.way) is None
    others = {(run.task, run.way) for run in plan.finals(lines)}
    assert len(others) == len(plan.pairs()) - 2  # `computed` has the choice of `skipped`


def test_lines_are_read_as_they_were_written(tmp_path: Path) -> None:
    path = tmp_path / "out" / "pilot.jsonl"
    assert plan.read(path) == []
    lines = pilot_lines()[:2]
    for line in lines:
        plan.append(path, line)
    with path.open("a") as file:
        file.write('{"task": "nee')  # killed while it wrote
    assert plan.read(path) == lines
    left = plan.remaining(plan.pilots(), plan.read(path))
    assert left == plan.pilots()[2:]


# ---------------------------------------------------------------------------------------- figures


def test_interval_of_student() -> None:
    mean, half = figures.interval([1.0, 2.0, 3.0, 4.0, 5.0])
    assert mean == 3
    assert half == pytest.approx(2.776 * np.sqrt(2.5 / 5), abs=1e-3)  # t table, 4 degrees
    assert np.isnan(figures.interval([1.0])[1])


def test_deviation_is_that_within_groups() -> None:
    assert figures.pooled_deviation([[1, 3], [11, 13], [7]]) == pytest.approx(np.sqrt(2))


def test_detectable_difference_is_detected_in_80_of_100() -> None:
    """Cohen's table has 64 a group for half a deviation; for five seeds, t tests of random numbers."""
    assert figures.detectable(1.0, 64) == pytest.approx(0.5, abs=0.005)
    rng = np.random.default_rng(0)
    difference = figures.detectable(0.03, 5)
    a, b = rng.normal(0, 0.03, (2, 20000, 5))
    found = stats.ttest_ind(a, b + difference, axis=1).pvalue < 0.05
    deviation = np.sqrt(0.8 * 0.2 / 20000)
    assert found.mean() == pytest.approx(0.8, abs=4 * deviation)


def test_report_of_lines(tmp_path: Path) -> None:
    lines = [line for line in pilot_lines() if line["rate"] == 1e-3 and line["head"] == "mean"]
    lines = [line for line in lines if line["task"] == "count" and line["encoder"] in ("", "views")]
    for line in lines:
        if line["way"] == "frozen":
            line["pretraining"] = 300.0
    lines[0]["looks"] = lines[0]["looks"][:3]  # three epochs: the last power of two of all is 2
    rows = figures.table(lines).splitlines()
    assert len(rows) == 2 + 4
    first = "| count | frozen | 0.001, mean, views | 2 | 0.900 +- 0.000 | not tested | not tested |"
    assert rows[2] == first + " 4.0 | 4 + 300 before | never | 0.540 +- 0.000 after 2 |"
    figures.draw(lines, tmp_path / "curves.png")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_seconds_until_a_way_is_good() -> None:
    looks = [{"seconds": 5.0 * n, "auc": auc} for n, auc in enumerate((0.5, 0.91, 0.8, 0.95))]
    seconds = [figures.seconds_to_good({"looks": part}) for part in (looks, looks[:1])]
    assert seconds == [5.0, None]
    assert figures.mean_or_share(seconds) == "1 of 2 seeds"
    assert figures.mean_or_share([5.0, 10.0]) == "8"


def test_differences_are_those_of_the_same_seed() -> None:
    lines = pilot_lines()[:1] * 4
    for number, (way, seed, score) in enumerate(
        [("frozen", 0, 0.6), ("frozen", 1, 0.8), ("tiles", 1, 0.9), ("tiles", 0, 0.7)]
    ):
        lines[number] = {**lines[number], "way": way, "seed": seed, "test": score}
    assert list(figures.differences(lines)) == [("needle", "tiles", False)]
    assert figures.differences(lines)["needle", "tiles", False] == pytest.approx((0.1, 0))


def test_power_of_the_pilots() -> None:
    assert figures.power(pilot_lines())["needle"] == pytest.approx(0)
    lines = pilot_lines()
    for line in lines:
        line["validation"] += 0.02 * (line["seed"] == 101)
    wanted = figures.detectable(0.02 / np.sqrt(2), len(plan.FINAL_SEEDS))
    assert figures.power(lines)["count"] == pytest.approx(wanted)


# ---------------------------------------------------------------------------------------- command


def test_hours_are_those_of_finished_runs_and_of_encoders_that_several_share() -> None:
    runs = [
        plan.Run("final", "count", "tiles", 1e-3, 0, "mean"),
        *(plan.Run("final", "count", "frozen", 1e-3, 0, head, "views") for head in plan.HEADS),
    ]
    setting = plan.Setting(seconds=400, head_seconds=60, pretraining=300)
    assert command.hours(runs, setting, []) == pytest.approx((400 + 2 * 60 + 300) / 3600)
    lines = [{"task": "count", "way": "tiles", "wall": wall} for wall in (100, 300)]
    assert command.hours(runs, setting, lines) == pytest.approx((200 + 2 * 60 + 300) / 3600)


def test_status_before_any_run(tmp_path: Path) -> None:
    """What the pilots have not decided has the hours of any choice."""
    found = command.status(command.Arguments(out=tmp_path, tasks=("needle",), ways=("tiles",)))
    assert found["pilot"] == {"done": {"needle": 0}, "left": 6, "hours_left": 0.7}
    assert found["final"] == {"done": {"needle": 0}, "left": 10, "hours_left": 1.1}


def test_two_commands_do_not_train_in_one_folder(tmp_path: Path) -> None:
    with (
        command.alone(tmp_path),
        pytest.raises(SystemExit, match="another command"),
        command.alone(tmp_path),
    ):
        pass
    with command.alone(tmp_path):
        pass


def test_report_of_the_best_pilots(tmp_path: Path) -> None:
    setting = asdict(plan.Setting())
    for line in pilot_lines():
        plan.append(tmp_path / "pilot.jsonl", {**line, "setting": setting})
    arguments = command.Arguments(out=tmp_path)
    lines = command.lines_of(arguments, "pilot")
    shown = command.best_pilots(arguments, lines)
    assert {line["rate"] for line in shown} == {1e-3}
    assert len(shown) == (len(plan.pairs()) - 1) * len(plan.PILOT_SEEDS)  # none is `computed`
    other = command.Arguments(out=tmp_path, seconds=1.0)
    assert command.lines_of(other, "pilot") == []


def called(*words: object) -> subprocess.CompletedProcess[str]:
    """Run the command on small images, for a moment."""
    small = ("--train", 32, "--validation", 8, "--test", 8, "--pretraining", 1)
    budgets = ("--seconds", 1, "--head-seconds", 0.1)
    return subprocess.run(
        [sys.executable, "-m", "recipes.experiments.end_to_end"]
        + [str(word) for word in (*words, *small, *budgets)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )


@pytest.mark.slow
def test_command(tmp_path: Path) -> None:
    """Pilots, the final runs of what they chose, what remains, and the report."""
    one = ("--out", tmp_path, "--tasks", "count", "--ways", "whole")
    called(*one, "--phase", "pilot")
    status = json.loads(called(*one, "--status").stdout)
    assert status["pilot"] == {"done": {"count": 6}, "left": 0, "hours_left": 0.0}
    assert status["final"]["left"] == 5
    called(*one, "--phase", "final")
    lines = plan.read(tmp_path / "final.jsonl")
    assert len(lines) == 5
    assert all(0 <= line["test"] <= 1 for line in lines)
    report = called(*one, "--report", tmp_path / "curves.png").stdout
    assert report.count("| count |") == 1
    assert (tmp_path / "curves.png").exists()
