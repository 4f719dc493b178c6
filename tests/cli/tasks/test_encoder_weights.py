"""`--encoder-weights`: published weights, files and runs, and the scale of pixels that belongs to them."""

import importlib
import shlex
import shutil
from dataclasses import replace

import dataset_folders
import drawn_folders
import keras
import numpy as np
import pytest
import tifffile
import yaml
from cli_runs import metrics, predictions, run_mil, run_patchgd, write_cohort
from PIL import Image
from safetensors.numpy import save_file

import train
from tfbig import SourceError
from tfbig.cli.main import main
from tfbig.cli.settings.tasks import ImageSettings, MILSettings
from tfbig.cli.settings.yaml_flags import read_yaml
from tfbig.cli.tasks import encoder_weights
from tfbig.models import encoders, pretrained
from tfbig.models.pathology_encoders import OPTIMUS_MEAN, OPTIMUS_STD, PATHOLOGY_ENCODERS

RESNET = ("--encoder", "resnet18", "--model", "mean")


def state_of(name, side=32):
    """Return arrays under torchvision's names that fit a network, all different, with positive variances."""
    expected = pretrained._torch_variables(encoders.make(name, (side, side, 3)))
    random = np.random.default_rng(0)
    state = {k: random.normal(0, 0.05, pretrained._shape(*v)) for k, v in expected.items()}
    return {
        k: abs(a).astype("float32") if "var" in k else a.astype("float32") for k, a in state.items()
    }


@pytest.fixture(scope="module")
def torch_file(tmp_path_factory):
    """File of weights under torchvision's names, with a classifier."""
    path = tmp_path_factory.mktemp("weights") / "resnet18.safetensors"
    save_file(state_of("resnet18") | {"fc.bias": np.zeros(5, "float32")}, path)
    return path


@pytest.fixture
def hub(tmp_path, monkeypatch, torch_file):
    """The client of published weights without a network; return the function that stores a file as fetched."""
    client = pytest.importorskip("huggingface_hub")
    cache = tmp_path / "cache"
    monkeypatch.setattr(
        importlib.import_module("huggingface_hub.constants"), "HF_HUB_OFFLINE", True
    )
    download = client.hf_hub_download
    monkeypatch.setattr(
        client, "hf_hub_download", lambda *a, **o: download(*a, **o, cache_dir=cache)
    )

    def store(repository):
        folder = cache / f"models--{repository.replace('/', '--')}"
        snapshot = folder / "snapshots" / ("0" * 40)
        snapshot.mkdir(parents=True)
        (folder / "refs").mkdir()
        (folder / "refs" / "main").write_text("0" * 40)
        shutil.copy(torch_file, snapshot / "model.safetensors")

    return store


def first_kernel(path):
    """Return the first kernel of the encoder in a saved model."""
    model = keras.models.load_model(path, compile=False)
    return (
        pretrained.find(model, "resnet18").get_layer("resnet18").get_layer("conv1").kernel.numpy()
    )


IMAGENET = (
    *RESNET,
    "--encoder-weights",
    "imagenet",
    "--mode",
    "frozen",
    "--data",
    drawn_folders.bags(2, 2, 2),
)


@pytest.mark.slow
def test_imagenet(hub, tmp_path, capsys):
    """Published weights are loaded with their scale."""
    hub("timm/resnet18.tv_in1k")
    assert run_mil(tmp_path / "out", *IMAGENET, "--dry-run") == 0
    printed = capsys.readouterr().out
    assert "encoder weights imagenet: 100 tensors loaded; not used: fc.bias\n" in printed
    assert "--mean 0.485 0.456 0.406 --std 0.229 0.224 0.225: those of" in printed


@pytest.mark.slow
def test_a_baseline_as_printed_freezes_published_weights(hub, tmp_path, monkeypatch, capsys):
    """The command that `tfbig dataset panda` prints, on less data; `random` overrides the recipe, and says so."""
    hub("timm/resnet18.tv_in1k")
    monkeypatch.chdir(tmp_path)
    dataset_folders.FOLDERS["panda"](tmp_path / "panda")
    assert main(["dataset", "panda", "panda", "--out", "tables"]) in (0, 3)
    printed = [line for line in capsys.readouterr().out.splitlines() if "panda-frozen" in line]
    smaller = [
        "--tile",
        "40",
        "--sample",
        "4",
        "--val-sample",
        "4",
        "--instances-at-once",
        "8",
        "--dry-run",
    ]
    command = [*shlex.split(printed[0])[1:], *smaller]
    assert main(command) == 0
    out, err = capsys.readouterr()
    assert "encoder weights imagenet: 100 tensors loaded" in out
    assert "random" not in err
    assert main([*command, "--encoder-weights", "random"]) == 0
    out, err = capsys.readouterr()
    assert "tensors loaded" not in out
    assert "without --encoder-weights, the weights of resnet18 are random" in err


@pytest.mark.slow
def test_a_run_records_its_weights(hub, tmp_path):
    """The run records weights and scale, and is resumed without the weights."""
    hub("timm/resnet18.tv_in1k")
    assert run_mil(tmp_path / "out", *IMAGENET) == 0
    config = read_yaml(tmp_path / "out" / "config.yaml")
    assert config["encoder_weights"] == "imagenet"
    assert (config["mean"], config["std"]) == ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
    trained = first_kernel(tmp_path / "out" / "model.keras")
    expected = state_of("resnet18")["conv1.weight"].transpose(2, 3, 1, 0)
    np.testing.assert_array_equal(trained, expected)
    shutil.rmtree(tmp_path / "cache")
    assert run_mil(tmp_path / "out", *IMAGENET, "--resume", "--epochs", "2") == 0
    assert metrics(tmp_path / "out")["epochs"] == 2


@pytest.mark.slow
def test_imagenet_without_a_network(hub, tmp_path, capsys):
    assert run_mil(tmp_path / "out", *RESNET, "--encoder-weights", "imagenet", "--dry-run") == 1
    (line,) = (each for each in capsys.readouterr().err.splitlines() if "imagenet" in each)
    assert (
        "model.safetensors of timm/resnet18.tv_in1k cannot be fetched (LocalEntryNotFound" in line
    )
    assert "run: hf download timm/resnet18.tv_in1k model.safetensors; copy the file here" in line


def test_imagenet_without_the_client(monkeypatch):
    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(SourceError, match=r"needs huggingface_hub .* pip install 'tfbig\[hub\]'"):
        encoder_weights._fetched("resnet18")


def test_networks_without_published_weights():
    advice = r"no published weights of --encoder small, but of resnet18, .*, or --encoder-weights random or FILE\."
    with pytest.raises(SourceError, match=advice):
        encoder_weights._fetched("small")
    with pytest.raises(SourceError, match=r"Request .* at https://huggingface.co/MahmoodLab/UNI,"):
        encoder_weights._fetched("uni")


def test_file_of_torchvision(torch_file, tmp_path, capsys):
    """PatchGD and its baseline take the file; its scale must be given."""
    flags = ("--encoder", "resnet18", "--encoder-weights", str(torch_file), "--dry-run")
    for mode in (("--mode", "patchgd", "--code", "vector"), ("--mode", "device")):
        assert run_patchgd(tmp_path / "out", *flags, *mode, "--mean", "0", "--std", "1") == 0
        assert f"encoder weights {torch_file}: 100 tensors loaded" in capsys.readouterr().out
    assert run_patchgd(tmp_path / "out", *flags) == 2
    error = capsys.readouterr().err
    assert (
        f"--encoder-weights {torch_file}: does not say how its images were scaled. Give --mean"
        in error
    )
    assert run_patchgd(tmp_path / "out", *flags, "--mean", "0") == 2
    assert "--mean needs --std with --encoder-weights" in capsys.readouterr().err


def test_file_of_another_network(torch_file, tmp_path, capsys):
    flags = (
        "--encoder",
        "resnet34",
        "--encoder-weights",
        str(torch_file),
        "--mean",
        "0",
        "--std",
        "1",
    )
    assert run_patchgd(tmp_path / "out", *flags, "--code", "vector", "--dry-run") == 1
    assert (
        f"--encoder-weights {torch_file}: has no 'layer1.2.conv1.weight', which 'resnet34' expects with shape "
        "(64, 64, 3, 3)" in capsys.readouterr().err
    )


@pytest.mark.slow
def test_weights_of_a_run(mil_run, tmp_path, capsys):
    """The encoder of another run, by its folder or its model; `tfbig evaluate` does not need them again."""
    model = keras.models.load_model(mil_run.folder / "model.keras", compile=False)
    expected = pretrained.find(model, "small").get_weights()
    first, out = tmp_path / "first", tmp_path / "out"
    shutil.copytree(mil_run.folder, first)
    assert run_mil(tmp_path, "--encoder-weights", str(first / "model.keras"), "--dry-run") == 0
    assert f"encoder weights {first}/model.keras: 9 tensors loaded\n" in capsys.readouterr().out
    assert run_mil(out, "--encoder-weights", str(first), "--lr", "1e-12", "--mode", "device") == 0
    trained = keras.models.load_model(out / "model.keras", compile=False)
    for a, b in zip(pretrained.find(trained, "small").get_weights(), expected, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)
    shutil.rmtree(first)
    assert main(["evaluate", str(out), "--out", str(tmp_path / "evaluated")]) == 0


def test_run_of_another_encoder(mil_run, tmp_path, capsys):
    flags = (
        "--encoder-weights",
        str(mil_run.folder),
        "--encoder",
        "lenet",
        "--dry-run",
    )
    assert run_mil(tmp_path / "out", *flags) == 1
    assert (
        "its model has no encoder 'lenet'. Use a run with --encoder lenet"
        in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("settings", "scale"),
    [
        (MILSettings(), (0.0, 1.0)),
        (MILSettings(std=0.5), (0.0, 0.5)),
        (ImageSettings(encoder="resnet50", mean=(0.1, 0.2, 0.3)), ((0.1, 0.2, 0.3), 1.0)),
        (MILSettings(encoder="small", encoder_weights="w.h5"), (0.0, 1.0)),
        (MILSettings(encoder="h-optimus-0", encoder_weights="w.bin"), (OPTIMUS_MEAN, OPTIMUS_STD)),
        (MILSettings(encoder="uni", std=0.5), (pretrained.IMAGENET_MEAN, 0.5)),
        (
            MILSettings(encoder="resnet18", encoder_weights="imagenet", mean=0.0, std=1.0),
            (0.0, 1.0),
        ),
    ],
)
def test_scale(settings, scale):
    """Numbers that are given win, those of ImageNet too: Big-Layers scales to 0..1 only."""
    resolved = encoder_weights.with_scale(settings)
    assert (resolved.mean, resolved.std) == scale


def test_scale_of_a_run(tmp_path):
    (tmp_path / "config.yaml").write_text("mean: [0.1, 0.2, 0.3]\nstd: 0.5\n")
    for encoder in ("resnet18", "uni"):
        settings = MILSettings(encoder=encoder, encoder_weights=str(tmp_path))
        resolved = encoder_weights.with_scale(settings)
        assert (resolved.mean, resolved.std) == ((0.1, 0.2, 0.3), 0.5)


@pytest.fixture
def virchow2(tmp_path, monkeypatch):
    """Flags of an encoder of pathology with weights for tiles of 24 pixels, whose network has one small block."""
    entry = PATHOLOGY_ENCODERS["virchow2"]
    network = replace(entry.network, patch=12, width=8, heads=2, depth=1)
    small = replace(entry, network=network, size=24)
    monkeypatch.setitem(PATHOLOGY_ENCODERS, "virchow2", small)
    save_file(state_of("virchow2", 24), tmp_path / "virchow2.safetensors")
    return "--encoder", "virchow2", "--encoder-weights", str(tmp_path / "virchow2.safetensors")


@pytest.mark.slow
def test_encoders_of_pathology(virchow2, tmp_path, capsys):
    """`--encoder virchow2` takes a file with timm's names."""
    flags = virchow2
    more = ("--model", "mean", "--mode", "frozen", "--epochs", "1")
    assert run_mil(tmp_path / "out", *flags, *more) == 0
    printed = capsys.readouterr().out
    assert (
        "--mean 0.485 0.456 0.406 --std 0.229 0.224 0.225: those of --encoder virchow2" in printed
    )
    assert f"encoder weights {flags[-1]}: 21 tensors loaded\n" in printed
    model = keras.models.load_model(tmp_path / "out" / "model.keras", compile=False)
    trained = pretrained.find(model, "virchow2").get_layer("virchow2").get_layer("tokens")
    expected = state_of("virchow2", 24)["pos_embed"]
    assert expected.shape == (1, 5 + 4, 8)
    np.testing.assert_array_equal(trained.pos_embed, expected)


FROZEN = ("--model", "mean", "--mode", "frozen", "--epochs", "1")


@pytest.mark.slow
def test_tiles_are_prepared_as_published(virchow2, tmp_path, capsys):
    """Tiles of 40 pixels become the input of the weights in training, in an evaluation and in a prediction."""
    table, out = write_cohort(tmp_path / "data"), tmp_path / "out"
    argv = ["--task", "mil", "--bags", "slides", "--data", str(table), "--tile", "40"]
    assert train.main([*argv, "--out", str(out), *virchow2, *FROZEN]) == 3
    assert "--encoder-input published: virchow2 reads tiles of 24 x 24" in capsys.readouterr().out
    saved = read_yaml(out / "config.yaml")
    assert (saved["tile"], saved["encoder_input"]) == (40, "published")
    model = keras.models.load_model(out / "model.keras", compile=False)
    row = predictions(out)[0]
    probabilities = [float(row[f"probability_{name}"]) for name in ("purple", "red")]
    tiles = tiles_of_square(table.parent / "centre 2" / "s8.tif", 40)
    rounding = 12 * 12 * 3 * np.finfo(np.float32).eps  # of the longest sum, that of a patch
    np.testing.assert_allclose(by_hand(model, tiles), probabilities, rtol=rounding)

    assert main(["evaluate", str(out), "--data", str(table), "--out", str(tmp_path / "again")]) == 0
    assert predictions(tmp_path / "again") == predictions(out)
    slide = str(table.parent / "centre 2" / "s8.tif")
    assert main(["predict", str(out), slide, "--out", str(tmp_path / "new")]) == 0
    (predicted,) = predictions(tmp_path / "new")
    assert int(predicted["tiles"]) == len(tiles)
    for name in ("purple", "red"):
        other = float(predicted[f"probability_{name}"])
        assert other == pytest.approx(float(row[f"probability_{name}"]), rel=rounding)


def tiles_of_square(path, side):
    """Read the tiles of a slide of a cohort: those of its square of 160 pixels from 80 on, all tissue."""
    image = tifffile.imread(path)
    starts = range(80, 240, side)
    return [image[row : row + side, left : left + side] for row in starts for left in starts]


def by_hand(model, tiles):
    """Predict by Pillow, torchvision's mean and deviation, and the network without its scaling."""
    core = pretrained.find(model, "virchow2").get_layer("virchow2")
    small = [Image.fromarray(tile).resize((24, 24), Image.Resampling.BICUBIC) for tile in tiles]
    mean, deviation = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    inputs = (np.stack([np.asarray(tile) for tile in small]) / 255 - mean) / deviation
    features = core(inputs.astype("float32"), training=False)
    return keras.ops.softmax(model.layers[-1](features[None]))[0]


@pytest.mark.slow
def test_runs_of_before_read_tiles_as_they_are(virchow2, tmp_path):
    """A run without the setting is evaluated to the same: its network has the size of its tiles."""
    out = tmp_path / "out"
    assert run_mil(out, *virchow2, *FROZEN, "--encoder-input", "tile") == 0
    config = read_yaml(out / "config.yaml")
    assert config.pop("encoder_input") == "tile"
    (out / "config.yaml").write_text(yaml.safe_dump(config))
    argv = ["evaluate", str(out), "--data", drawn_folders.bags(6, 4, 4)]
    assert main([*argv, "--out", str(tmp_path / "again")]) == 0
    assert predictions(tmp_path / "again") == predictions(out)


def test_what_an_encoder_reads(tmp_path):
    """Weights decide for a new run, and a saved run without the setting reads tiles as they are."""
    run = tmp_path / "run"
    run.mkdir()
    for saved, of_run in (("", "tile"), ("encoder_input: published\n", "published")):
        (run / "config.yaml").write_text(f"mean: 0.0\nstd: 1.0\n{saved}")
        for given, expected in (
            ({}, "tile"),
            ({"encoder_weights": "w.bin"}, "published"),
            ({"encoder_weights": "w.bin", "encoder_input": "tile"}, "tile"),
            ({"encoder_weights": "w.bin", "test_only": str(run)}, "tile"),
            ({"encoder_weights": "w.bin", "resume": True, "out": str(run)}, "tile"),
            ({"encoder_weights": "w.bin", "resume": True, "out": str(tmp_path)}, "published"),
            ({"encoder_weights": str(run)}, of_run),
        ):
            found = encoder_weights.with_input(MILSettings(encoder="uni", **given))
            assert found.encoder_input == expected
    plain = MILSettings(encoder="resnet18", encoder_weights="imagenet")
    assert encoder_weights.with_input(plain) is plain


def test_tiles_of_no_patches(tmp_path, capsys):
    assert run_mil(tmp_path / "out", "--encoder", "uni2-h", "--dry-run") == 2
    assert (
        "--encoder uni2-h: cannot read instances of shape (24, 24, 3); expected tiles [H, W, 3] whose sides are "
        "multiples of 14. Use --encoder-input published, or such a --tile."
        in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    "task", [("--task", "mil", "--encoder", "none"), ("--task", "images", "--encoder", "series")]
)
def test_no_encoder(task, torch_file, tmp_path, capsys):
    run = run_mil if task[1] == "mil" else run_patchgd
    assert run(tmp_path / "out", *task, "--encoder-weights", str(torch_file), "--dry-run") == 2
    assert f"--encoder {task[3]} has no weights to start from" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "warns"), [(("--mode", "frozen"), True), (("--mode", "accumulate"), False)]
)
def test_an_encoder_that_is_not_trained_is_not_random_without_a_word(
    flags, warns, tmp_path, capsys
):
    assert run_mil(tmp_path / "out", *flags, "--encoder", "resnet18", "--dry-run") == 0
    assert ("the weights of resnet18 are random" in capsys.readouterr().err) == warns
