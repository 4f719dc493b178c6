"""Images of `--task images`: folders, class folders, time series, and augmentation."""

import numpy as np
import pytest
import tifffile
from cli_runs import metrics, patchgd, run_patchgd
from PIL import Image

import train
from tfbig import SourceError, sources
from tfbig.cli.data import images, splits
from tfbig.cli.main import main
from tfbig.cli.settings.flag import to_save
from tfbig.data.worker_shards import Shard
from tfbig.results import model_card, pixel_sizes, run_folder
from tfbig.tasks import TASKS


def write_images(folder, rows, columns):
    folder.mkdir()
    for number, row in enumerate(rows):
        pixels = np.random.default_rng(number).integers(0, 256, (40 + number, 50, 3), np.uint8)
        Image.fromarray(pixels).save(folder / row[0])
    lines = [",".join(columns), *(",".join(map(str, row)) for row in rows)]
    (folder / "images.csv").write_text("\n".join(lines))


@pytest.mark.slow
@pytest.mark.parametrize("side", [True, False])
def test_folder_of_images(side, tmp_path, capsys):
    splits_of = ["train"] * 6 + ["val"] * 2 + ["test"] * 2
    rows = [(f"{i}.png", i % 2, split) for i, split in enumerate(splits_of)]
    write_images(tmp_path / "data", rows, ("image", "label", "split"))
    (tmp_path / "data" / "3.png").write_bytes(b"no image")
    flags = ("--side", "64", "--mode", "device") if side else ("--batch-size", "1")
    assert (
        run_patchgd(
            tmp_path / "out", "--images", "folder", "--data", str(tmp_path / "data"), *flags
        )
        == 3
    )
    assert "3.png: cannot be decoded" in capsys.readouterr().err
    assert len(metrics(tmp_path / "out")["left_out"]) == 1
    assert np.shape(metrics(tmp_path / "out")["confusion"]) == (2, 2)


MODES = ("1", "L", "LA", "P", "RGB", "RGBA", "CMYK")


@pytest.mark.parametrize("first", [*MODES, "I;16"])
@pytest.mark.parametrize("last", ["RGB", "L", "I;16"])
def test_images_of_every_mode(first, last, tmp_path):
    """All of 8 bits become RGB, whichever is the first of its split; those of 16 bits are named."""
    places = [split for split in splits.SPLITS for _ in range(3)]
    lines = ["image,label,split"]
    for number, split in enumerate(places):
        mode = {0: first, 1: "RGB", 2: last}[number % 3]
        name = f"{number}.jpg" if mode == "CMYK" else f"{number}.png"
        Image.new(mode, (50, 40)).save(tmp_path / name)
        lines.append(f"{name},{number % 2},{split}")
    (tmp_path / "images.csv").write_text("\n".join(lines))
    flags = ["--images", "folder", "--data", str(tmp_path)]
    data = images.load(train.settings_of(patchgd(*flags)))
    deep = (first, last).count("I;16")
    assert [len(getattr(data, split).images) for split in splits.SPLITS] == [3 - deep] * 3
    assert len(data.failed) == 3 * deep
    assert all(
        "of uint16; expected 1 or 3 channels of 8 bits" in reason for _, reason in data.failed
    )
    opened = [image for split in splits.SPLITS for image in getattr(data, split).images]
    assert {image.read(0, 40).shape for image in opened} == {(40, 50, 3)}


def test_shares_of_splits(tmp_path):
    rows = "".join(f"{n}.png,{n % 2}\n" for n in range(50))
    for number in range(50):
        Image.new("L", (20, 20)).save(tmp_path / f"{number}.png")
    (tmp_path / "images.csv").write_text(f"image,label\n{rows}")
    flags = ["--images", "folder", "--data", str(tmp_path), "--shares", "72", "8", "20"]
    data = images.load(train.settings_of(patchgd(*flags)))
    assert [len(getattr(data, split).labels) for split in splits.SPLITS] == [36, 4, 10]


def test_folds_of_a_folder(tmp_path):
    """Each image of a table, or of class folders, is tested in one fold."""
    lines = ["image,label,split"]
    for name in ("a", "b"):
        (tmp_path / "classes" / name).mkdir(parents=True)
        for number in range(6):
            Image.new("L", (20, 20)).save(tmp_path / "classes" / name / f"{name}{number}.png")
            lines.append(f"classes/{name}/{name}{number}.png,{name},train")
    (tmp_path / "images.csv").write_text("\n".join(lines))
    for flags in (
        ["folder", "--data", str(tmp_path)],
        ["pictures", "--data", f"{tmp_path}/classes"],
    ):
        tested = []
        for fold in "012":
            argv = patchgd("--images", *flags, "--folds", "3", "--fold", fold)
            data = images.load(train.settings_of(argv))
            assert [len(getattr(data, split).labels) for split in splits.SPLITS] == [4, 4, 4]
            tested += [image.name for image in data.test.images]
        assert len(set(tested)) == 12


def test_all_of_other_data_is_evaluated(tmp_path):
    """Class folders without splits: of the data of the run its test share, of others all images."""
    for name in ("mine", "other"):
        for label in ("a", "b"):
            (tmp_path / name / label).mkdir(parents=True)
            for number in range(10):
                Image.new("RGB", (32, 32)).save(tmp_path / name / label / f"{number}.png")
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.yaml").write_text(f"data: {tmp_path / 'mine'}\n")
    counts = []
    for name in ("mine", "other"):
        flags = ["--images", "pictures", "--data", str(tmp_path / name), "--test-only", str(run)]
        counts.append(len(images.load(train.settings_of(patchgd(*flags))).test.images))
    assert counts == [4, 20]


def test_only_images_of_16_bits(tmp_path, capsys):
    rows = "".join(f"{n}.png,{n},{split}\n" for split in splits.SPLITS for n in range(2))
    for number in range(2):
        Image.new("I;16", (50, 40)).save(tmp_path / f"{number}.png")
    (tmp_path / "images.csv").write_text(f"image,label,split\n{rows}")
    assert run_patchgd(tmp_path / "out", "--images", "folder", "--data", str(tmp_path)) == 1
    error = capsys.readouterr().err
    assert "none of the images in split 'train' can be used (2 of 2 failed)" in error
    assert "0.png: has 1 channel of uint16" in error


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["device", "patchgd"])
def test_class_folders(mode, tmp_path):
    for split, count in (("train", 10), ("val", 3)):
        for name in ("cat", "dog"):
            folder = tmp_path / split / name
            folder.mkdir(parents=True)
            for i in range(count):
                pixels = np.random.default_rng(i).integers(0, 256, (30, 40, 3), np.uint8)
                Image.fromarray(pixels).save(folder / f"{i}.jpg")
    flags = ("--images", "pictures", "--data", str(tmp_path), "--side", "48", "--mode", mode)
    flags += ("--patch-stride", "8") if mode == "patchgd" else ()
    assert run_patchgd(tmp_path / "out", *flags, "--epochs", "1") == 0
    assert np.sum(metrics(tmp_path / "out")["confusion"]) == 6
    loaded = images.load(train.settings_of(patchgd(*flags)))
    assert [len(getattr(loaded, s).labels) for s in splits.SPLITS] == [18, 2, 6]
    assert loaded.classes == ("cat", "dog")


@pytest.mark.parametrize(("shape", "dtype"), [((16, 3), "float64"), ((16, 3, 1), "float32")])
def test_what_is_no_series(shape, dtype, tmp_path):
    np.save(tmp_path / "0.npy", np.zeros(shape, dtype))
    (tmp_path / "images.csv").write_text("image,label,split\n0.npy,a,train\n0.npy,b,val\n")
    flags = ["--task", "images", "--data", str(tmp_path), "--encoder", "series"]
    with pytest.raises(SourceError, match=r"expected a series \[samples, channels\] of float32"):
        images.load(train.settings_of(flags))


def test_augmentation_differs_between_epochs(cohort_table):
    flags = (
        "--task",
        "images",
        "--images",
        "slides",
        "--data",
        str(cohort_table),
        "--augment",
        "slide",
    )
    options = train.settings_of([*flags, "--batch-size", "1"])
    train_set = images.load(options).train
    batches = images.dataset(train_set, options, learns=True)
    epochs = [[handle.numpy()[0].decode() for handle, _ in batches] for _ in range(2)]
    assert all("?seed=" in handle for epoch in epochs for handle in epoch)
    assert not set(epochs[0]) & set(epochs[1])
    again = images.dataset(train_set, options, learns=True, shard=Shard(1))
    assert [handle.numpy()[0].decode() for handle, _ in again] == epochs[1]
    plain = images.dataset(train_set, options)
    assert not any("?" in handle.numpy()[0].decode() for handle, _ in plain)
    assert isinstance(sources.resolve(epochs[0][0]), sources.AugmentedImage)


def write_sized(folder, classes, size):
    """Write images of two classes with pixels of a size in micrometres, or None if the files do not say it."""
    resolution = {"resolution": (1e4 / size,) * 2, "resolutionunit": "CENTIMETER"} if size else {}
    for name in classes:
        (folder / name).mkdir(parents=True)
        for number in range(6):
            pixels = np.full((32, 32, 3), 20 * number, np.uint8)
            path = folder / name / f"{number}.tif"
            tifffile.imwrite(path, pixels, photometric="rgb", **resolution)


def table_of_images(folder, classes):
    """List the images of a folder in `images.csv`, each class once in every split, as images of a patient."""
    splits_of = ["train"] * 2 + ["val"] * 2 + ["test"] * 2
    rows = [
        f"{name}/{number}.tif,{name},{split},p{number}"
        for name in classes
        for number, split in enumerate(splits_of)
    ]
    (folder / "images.csv").write_text("\n".join(["image,label,split,patient", *rows]))


@pytest.mark.parametrize("kind", ["folder", "pictures"])
@pytest.mark.parametrize("size", [0.25, None])
def test_sizes_of_pixels(kind, size, tmp_path, capsys):
    """A run records them, its card says them, and an evaluation and a prediction warn of others."""
    data, other, run = (tmp_path / name for name in ("data", "other", "run"))
    for folder, pixel in ((data, size), (other, 0.5)):
        write_sized(folder, "ab", pixel)
        if kind == "folder":
            table_of_images(folder, "ab")
    flags = ["--images", kind, "--side", "16"]
    settings = train.settings_of(patchgd(*flags, "--data", str(data)))
    found = images.load(settings)
    assert "sizes of pixels" not in capsys.readouterr().err
    run.mkdir()
    splits.write_tables(found.table, found.failed, run)
    rows = run_folder.read_rows(run / run_folder.SLIDES)
    assert {row["image"] for row in rows} == {str(p) for p in data.glob("*/*.tif")}
    assert sorted({row["label"] for row in rows}) == ["a", "b"]
    run_folder.write_yaml(run / run_folder.CONFIG, to_save(settings))
    run_folder.write_json(run / run_folder.METRICS, {"val_loss": 1.0})
    card = model_card.write_card(run).read_text()
    assert f"| number of images | {count_of_splits(found)} |" in card
    evaluated = [*flags, "--data", str(other), "--test-only", str(run)]
    if size is None:
        assert pixel_sizes.trained_pixels(run) == () and "size of pixels" not in card
        images.load(train.settings_of(patchgd(*evaluated)))
        assert capsys.readouterr().err == ""
        return
    ((height, width),) = pixel_sizes.trained_pixels(run)
    assert (height, width) == pytest.approx((size, size))
    assert "| size of pixels | 0.25 um |" in card
    images.load(train.settings_of(patchgd(*evaluated)))
    (line,) = capsys.readouterr().err.splitlines()
    assert "another size of pixels than the run was trained on" in line
    assert "at 0.5 um, trained on 0.25 um; results may be wrong. Resample them to one size." in line
    TASKS["images"].new_trainer().network(settings, found, 2).twin.save(run / run_folder.MODEL)
    argv = ["predict", str(run), str(other / "a"), "--out", str(tmp_path / "out"), "--dry-run"]
    assert main(argv) == 0
    error = capsys.readouterr().err
    assert "trained on: 6 of 6 slides, such as 0.tif at 0.5 um, trained on 0.25 um" in error


def count_of_splits(data):
    """The number of images of each split, in the words of the card."""
    names = {"train": "for training", "val": "for validation", "test": "for testing"}
    return ", ".join(f"{len(part.images)} {names[split]}" for split, part in data.sets.items())


def test_images_of_different_sizes_of_pixels(tmp_path, capsys):
    write_sized(tmp_path, "a", 0.25)
    write_sized(tmp_path, "b", 0.5)
    table_of_images(tmp_path, "ab")
    flags = ["--images", "folder", "--data", str(tmp_path), "--level", "0"]
    found = images.load(train.settings_of(patchgd(*flags)))
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("images are read at different sizes of pixels, from 0.25 um (")
    assert line.endswith("expected one size. Resample them to one size, or leave some out.")
    assert [row["patient"] for row in found.table[:3]] == ["p0", "p1", "p2"]
