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
from cli_runs import metrics, run_mil, run_patchgd
from safetensors.numpy import save_file

from tfbig import SourceError
from tfbig.cli.main import main
from tfbig.cli.settings.tasks import ImageSettings, MILSettings
from tfbig.cli.settings.yaml_flags import read_yaml
from tfbig.cli.tasks import encoder_weights
from tfbig.models import encoders, pretrained
from tfbig.models.pathology_encoders import OPTIMUS_MEAN, OPTIMUS_STD, PATHOLOGY_ENCODERS

RESNET = ("--encoder", "resnet18", "--tile", "32", "--model", "mean")


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


@pytest.mark.slow
def test_encoders_of_pathology(tmp_path, monkeypatch, capsys):
    """`--encoder virchow2` takes a file with timm's names; here its network has one small block."""
    entry = PATHOLOGY_ENCODERS["virchow2"]
    network = replace(entry.network, patch=12, width=8, heads=2, depth=1)
    monkeypatch.setitem(PATHOLOGY_ENCODERS, "virchow2", replace(entry, network=network))
    save_file(state_of("virchow2", 24), tmp_path / "virchow2.safetensors")
    flags = ("--encoder", "virchow2", "--encoder-weights", str(tmp_path / "virchow2.safetensors"))
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
