"""Errors of the library name flags when they come from the command line."""

import pickle
import re

import keras
import numpy as np
import pytest
import tifffile
import zarr
from cli_runs import MIL, patchgd, run_segmentation, write_cohort, write_square
from graphs import PLENTY, chain_graph, make_planner, squares
from keras import layers
from samples import darkness

import train
from tfbig.cli import messages
from tfbig.cli.main import main
from tfbig.cli.settings.commands import COMMANDS
from tfbig.errors import Advice, BudgetError, SourceError
from tfbig.sources import read_coords

ARGUMENT = re.compile(
    r"`(device|host|disk)`|Budget|(?<![\w-])[a-z_]+=|tfbig\.[a-z]|OutlineRule|\bopen_slide\b|find_tissue"
)
"""Arguments and names of Python."""
WITHOUT_FLAGS = {
    *(Advice.SMALLER_OR_NARROWER, Advice.SMALLER_PATCH, Advice.OPEN_AS, Advice.DTYPE),
}
"""Advice that some commands have no flags for."""


def error_of(capsys, call):
    """Return what a failing command prints to standard error, without lines of other kinds."""
    try:
        assert call() != 0
    except SystemExit as ended:
        assert ended.code != 0
    return "\n".join(line for line in capsys.readouterr().err.splitlines() if ": " in line)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--device-memory", "1KB"), "Raise --device-memory to"),
        (("--host-memory", "10KB", "--disk", "0"), "Raise --host-memory to"),
        (("--devices", "GPU:77"), "--devices 'GPU:77': no such device"),
    ],
)
def test_train(flags, message, segmentation_data, tmp_path, capsys):
    error = error_of(capsys, lambda: run_segmentation(segmentation_data, tmp_path / "out", *flags))
    assert message in error
    assert not ARGUMENT.search(error)


def test_plan(tmp_path, capsys):
    image = keras.Input((None, None, 3))
    x = layers.BatchNormalization()(layers.Conv2D(4, 3)(image))
    keras.Model(image, layers.Conv2D(1, 3)(x)).save(tmp_path / "m.keras")
    flags = ["plan", str(tmp_path / "m.keras"), "512x512", "--host-memory", "10KB", "--disk", "0"]
    error = error_of(capsys, lambda: main(flags))
    assert "Raise --host-memory to" in error
    assert not ARGUMENT.search(error)


@pytest.mark.parametrize(
    ("command", "advice"),
    [("plan", "--store bfloat16"), ("train", "--precision mixed_bfloat16")],
)
def test_images_that_do_not_fit(command, advice):
    graph = chain_graph()
    with pytest.raises(BudgetError) as refused:
        make_planner(graph, PLENTY, 1).plan(1, squares(graph, 64))
    error = messages.in_flags(refused.value, command)
    assert f"smaller images, a smaller batch or {advice}." in error
    assert not ARGUMENT.search(error)


def test_predict(tmp_path, capsys):
    write_square(tmp_path / "a.tif")
    darkness(tmp_path / "m.keras")
    flags = [str(tmp_path / "m.keras"), str(tmp_path / "a.tif"), "--out", str(tmp_path / "out")]
    error = error_of(capsys, lambda: main(["predict", *flags, "--device-memory", "1KB"]))
    assert "Raise --device-memory to" in error
    assert not ARGUMENT.search(error)


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("advice", Advice)
def test_advice_is_said_by_flags(advice, command):
    """The command line says in flags what the library says in Python, with the same values."""
    values = {
        "mpp": 0.25,
        "last": 7,
        "need": "3 GiB",
        "smaller": "a batch of 1",
        "store": "float16",
        "part": "a.zarr/0",
        "found": "uint16",
    }
    error = SourceError("a.tif: is wrong.", advice, **values)
    text = messages.in_flags(error, command)
    assert text.startswith("a.tif: is wrong. ") and text.endswith(".")
    assert not ARGUMENT.search(text)
    assert ("--" in text) or not ARGUMENT.search(str(error)) or advice in WITHOUT_FLAGS
    for value in map(str, {**values, "store": "", "found": ""}.values()):
        assert (value in text) == (value in str(error))
    assert messages.in_flags(pickle.loads(pickle.dumps(error)), command) == text


def test_several_pieces_of_advice():
    advice = Advice.RAISE_HOST, Advice.RAISE_DISK, Advice.SMALLER_IMAGES
    error = BudgetError("too small.", *advice, need="3 GiB")
    rest = "use smaller images or a smaller batch."
    assert str(error) == f"too small. Raise `host` to 3 GiB, or `disk`, or {rest}"
    assert messages.in_flags(error) == (
        f"too small. Raise --host-memory to 3 GiB, or --disk, or {rest}"
    )


def test_a_text_is_not_rewritten():
    """Names of files may look like arguments of Python."""
    text = "`disk`.tif: Budget(scratch=...) or store='a'"
    assert messages.in_flags(SourceError(text)) == text
    assert messages.in_flags(ValueError(text), "plan") == text
    advised = SourceError(text, Advice.STORED_PIXELS)
    assert messages.in_flags(advised).startswith(f"{text} Use --level 0")


@pytest.fixture
def unknown(tmp_path):
    """A slide that does not say the size of its pixels, and one that says 0.5 um."""
    folder = tmp_path / "slides"
    folder.mkdir()
    write_square(folder / "unknown.tif", resolutionunit="NONE")
    write_square(folder / "a.tif")
    return folder


def test_missing_pixel_size(unknown, tmp_path, capsys):
    flags = ["tile", str(unknown), "--out", str(tmp_path / "out"), "--tile", "64"]
    error = error_of(capsys, lambda: main(flags))
    assert "Use --slide-mpp 0.25, or --mpp-of FILE, a CSV with columns wsi,mpp" in error
    assert not ARGUMENT.search(error)


def test_slide_mpp(unknown, tmp_path):
    out = tmp_path / "out"
    flags = ["tile", str(unknown), "--out", str(out), "--tile", "64", "--mpp", "1"]
    assert main([*flags, "--slide-mpp", "0.25"]) == 0
    assert read_coords(out / "unknown.h5").step == 4.0
    assert read_coords(out / "a.h5").step == 2.0  # the file says 0.5


def test_mpp_of_wins(unknown, tmp_path):
    (tmp_path / "mpp.csv").write_text("wsi,mpp\nunknown,0.2\n")
    flags = ["tile", str(unknown), "--out", str(tmp_path / "out"), "--tile", "64", "--mpp", "1"]
    assert (
        main(
            [
                *flags,
                "--slide-mpp",
                "0.25",
                "--mpp-of",
                str(tmp_path / "mpp.csv"),
                "--tissue",
                "none",
            ]
        )
        == 0
    )
    assert read_coords(tmp_path / "out" / "unknown.h5").step == 5.0


@pytest.fixture
def silent_cohort(tmp_path):
    """A table of slides of which two do not say the size of their pixels."""
    table = write_cohort(tmp_path / "data")
    for name in ("centre 0/s0", "centre 0/s9"):
        write_square(table.parent / f"{name}.tif", side=320, resolutionunit="NONE")
    return table


def test_training_without_pixel_size(silent_cohort, tmp_path, capsys):
    flags = ["--task", "mil", "--bags", "slides", "--tile", "16", "--mpp", "1", "--dry-run"]
    assert train.main([*flags, "--data", str(silent_cohort)]) == 0
    error = capsys.readouterr().err
    assert "skipped s0: " in error
    assert "Use --slide-mpp 0.25, or --mpp-of FILE" in error
    assert train.main([*flags, "--data", str(silent_cohort), "--slide-mpp", "0.5"]) == 0
    assert "skipped s0: " not in capsys.readouterr().err


def test_whole_slides_without_pixel_size(silent_cohort, tmp_path, capsys):
    flags = ["--task", "images", "--images", "slides", "--mpp", "2", "--dry-run"]
    flags += ["--encoder", "small", "--head", "smaller", "--data", str(silent_cohort)]
    assert train.main([*flags, "--slide-mpp", "0.5"]) == 0
    output = capsys.readouterr()
    assert "skipped s0: " not in output.err
    assert "of 80 x 80 x 3" in output.out


def test_slide_smaller_than_a_tile(tmp_path, capsys):
    write_square(tmp_path / "a.tif", 128)
    flags = ["tile", str(tmp_path / "a.tif"), "--out", str(tmp_path / "out"), "--level", "0"]
    error = error_of(capsys, lambda: main([*flags, "--tile", "256"]))
    assert (
        "smaller than a patch of (256, 256). Use smaller patches, or leave the slide out." in error
    )


def test_no_data(tmp_path, capsys):
    flags = ["--task", "mil", "--bags", "slides", "--out", str(tmp_path / "out")]
    assert train.main(flags) == 2
    assert "train.py: --task mil needs --data: a table of slides" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def write_plate(folder):
    """Write an OME-Zarr plate of one well."""
    group = zarr.open_group(folder / "plate.zarr", mode="w", zarr_format=2)
    group.attrs["plate"] = {"wells": [{"path": "A/1"}]}
    return folder / "plate.zarr"


def write_labels(folder):
    """Write an OME-Zarr that holds labels alone."""
    group = zarr.open_group(folder / "labels.zarr", mode="w", zarr_format=2)
    group.create_group("labels").create_group("cells")
    return folder / "labels.zarr"


def write_scaled(folder):
    """Write a GeoTIFF whose values have a scale."""
    xml = '<GDALMetadata><Item name="SCALE" sample="0" role="scale">0.5</Item></GDALMetadata>'
    tag = (42112, "s", 0, xml, True)
    tifffile.imwrite(folder / "scaled.tif", np.zeros((64, 64), np.uint8), extratags=[tag])
    return folder / "scaled.tif"


def write_dark(folder):
    """Write a slide with a dark background."""
    tifffile.imwrite(folder / "dark.tif", np.full((300, 300), 3, np.uint8))
    return folder / "dark.tif"


def write_deep(folder):
    """Write a slide of 16 bits."""
    tifffile.imwrite(folder / "deep.tif", np.zeros((300, 300), np.uint16))
    return folder / "deep.tif"


@pytest.mark.parametrize(
    ("write", "flags", "advice"),
    [
        (write_plate, (), "plate.zarr/A/1/0, with --reader zarr, or copy it to a folder NAME"),
        (write_labels, (), "Use {file}/labels/NAME with --reader zarr"),
        (write_scaled, ("--reader", "tifffile"), "(scale 0.5). Use --reader rasterio."),
        (write_dark, ("--tissue", "otsu"), "expected a bright background. Use --dark."),
        (
            write_deep,
            (),
            "in 1 or 3 channels of uint8. Convert it first, or for tiles use --tissue",
        ),
    ],
)
def test_files_that_need_a_flag(write, flags, advice, tmp_path, capsys):
    """The advice of a reader is a flag, and in Python an argument."""
    file = write(tmp_path)
    words = ["tile", str(file), "--out", str(tmp_path / "out"), "--level", "0", "--tile", "64"]
    error = error_of(capsys, lambda: main([*words, *flags]))
    assert advice.format(file=file) in error
    assert not ARGUMENT.search(error)


def test_layer_without_a_rule(tmp_path, capsys):
    """Masks are predicted strip by strip alone, so there is no flag for plain Keras."""
    write_square(tmp_path / "a.tif")
    image = keras.Input((None, None, 3))
    x = layers.Conv2D(1, 3, padding="same", activation="sigmoid")(image)
    keras.Model(image, keras.ops.cumsum(x, 1)).save(tmp_path / "m.keras")
    flags = [str(tmp_path / "m.keras"), str(tmp_path / "a.tif"), "--out", str(tmp_path / "out")]
    error = error_of(capsys, lambda: main(["predict", *flags]))
    assert "Or use another network, or name a module with a rule by --custom." in error
    assert "unsupported" not in error


@pytest.mark.parametrize(
    ("make", "flags", "message"),
    [
        (
            patchgd,
            ("--sampler", "attention"),
            "--sampler attention: --head smaller has none. Use --head",
        ),
        (
            patchgd,
            ("--strategy", "mirrored", "--inner-accumulate", "2"),
            "--strategy mirrored: adds up gradients of replicas in each step, but with --inner-",
        ),
        (
            lambda *flags: [*MIL, *flags],
            ("--mode", "offload", "--norm", "per_slice"),
            "--norm per_slice: has the statistics of a slice of --instances-at-once, which --mode offload does not",
        ),
    ],
)
def test_flags_that_cannot_be_combined(make, flags, message, tmp_path, capsys):
    argv = [*make(*flags), "--out", str(tmp_path / "out"), "--dry-run"]
    error = error_of(capsys, lambda: train.main(argv))
    assert message in error
    assert not ARGUMENT.search(error)
