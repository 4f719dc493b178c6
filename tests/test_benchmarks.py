"""Benchmarks on small images, their command lines, and the report of their results."""

from __future__ import annotations

import functools
import gzip
import importlib
import json
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from cli_runs import write_square
from keras import layers
from PIL import Image
from samples import ROOT

import tfbig
from benchmarks import (
    background,
    compare,
    first_step,
    gpu,
    gpu_profile,
    gpu_series,
    harness,
    models_let_go,
    profile,
    run,
)


def printed(script: str, *words: object) -> list[dict]:
    """Run a benchmark and return the JSON lines that it prints."""
    process = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / script), *map(str, words)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    return [json.loads(line) for line in process.stdout.splitlines() if line.startswith("{")]


def test_traces_do_not_grow() -> None:
    """The first step takes as long as its traces are large; they are counted, which no machine changes."""
    x = image = keras.Input((None, None, 3))
    for filters in (4, 4, 8, 8):
        y = layers.DepthwiseConv2D(3, padding="same", use_bias=False)(x)
        y = layers.ReLU()(layers.BatchNormalization()(y))
        x = layers.BatchNormalization()(layers.Conv2D(filters, 1, use_bias=False)(y))
    model = keras.Model(image, layers.Dense(1)(layers.GlobalAveragePooling2D()(x)))
    big = tfbig.stream(model, tfbig.Budget(device="200KB"), plain_if_small=False)
    big.compile("sgd", "mse")
    size = first_step.graph_size(big, (tf.zeros((1, 64, 64, 3)), tf.ones((1, 1))))
    assert size["functions"] < 1.5 * 27
    assert size["operations"] < 1.5 * 2140


@pytest.mark.slow
def test_first_step() -> None:
    words = ["--networks", "conv_chain", "--side", "96", "--ways", "plain", "small", "streamed"]
    plain, small, streamed = printed("first_step.py", *words)
    assert plain["first_step_ratio"] == 1
    assert small["operations"] < streamed["operations"]


@pytest.mark.slow
def test_planning() -> None:
    words = ["--network", "MobileNetV2", "--side", "1024", "--device", "500MB", "--host", "4GB"]
    (line,) = printed("planning.py", *words)
    assert line["case"] == "planning of MobileNetV2"
    assert 0 < line["device_bytes"] <= 500e6
    assert line["predicted_seconds"] > 0


@pytest.mark.slow
def test_compare() -> None:
    words = ["--network", "conv_chain", "--side", "128", "--rounds", "1", "--steps", "1"]
    plain, streamed, unified = printed(
        "compare.py", *words, "--ways", "plain", "streamed", "unified"
    )
    assert plain["seconds_ratio"] == plain["memory_ratio"] == 1.0
    assert streamed["loss"] == pytest.approx(plain["loss"], rel=1e-5)
    assert unified["loss"] == pytest.approx(plain["loss"], rel=1e-5)
    assert streamed["planned_bytes"] >= streamed["peak_bytes"]
    assert {"commit", "machine", "versions", "floor_seconds"} <= set(streamed)


@pytest.mark.slow
def test_profile() -> None:
    """Shares add up to 1, and the gradient of pooling is oneDNN's, not TensorFlow's own, inside the loop too."""
    words = ["--network", "resnet18", "--side", "256", "--device", "8MB"]
    script = [sys.executable, str(ROOT / "benchmarks/profile.py"), *words, "--operations", "99"]
    process = subprocess.run(script, capture_output=True, text=True, check=True)
    shares = json.loads(process.stdout.splitlines()[-1])["shares"]
    assert sum(shares.values()) == pytest.approx(1, abs=1e-3)
    assert shares["products"] > 0.2
    names = [line.split()[0] for line in process.stderr.splitlines() if line.endswith(" s")]
    if "_MklNativeConv2D" in names:
        assert "_MklNativeMaxPoolGrad" in names
        assert "MaxPoolGrad" not in names


def test_shares_of_overlapping_operations() -> None:
    events = [(0, 10, "Conv2D"), (5, 20, "Mul"), (18, 30, "PyFunc"), (40, 50, "MatMul")]
    shares = profile.shares(events)
    expected = {"products": 20, "other arithmetic": 10, "calls to Python": 10, "waiting": 10}
    assert shares == {kind: expected.get(kind, 0) / 50 for kind in (*profile.KINDS, "waiting")}


@pytest.mark.parametrize(
    ("operation", "kind"),
    [
        ("_MklNativeConv2DBackpropFilter", "products"),
        ("sm90_xmma_gemm_bf16", "products"),
        ("MemcpyH2D", "copies to a device"),
        ("PyFunc", "calls to Python"),
        ("AddV2", "other arithmetic"),
    ],
)
def test_kind_of(operation: str, kind: str) -> None:
    assert profile.kind_of(operation) == kind


def arguments_of(script: str, words: list[str]) -> dict[str, Any]:
    """Return the arguments of a benchmark by name."""
    module = importlib.import_module(f"benchmarks.{script.removesuffix('.py')}")
    if hasattr(module, "Arguments"):
        return vars(harness.read(module.Arguments, words))
    return vars(module.parse_arguments(words))


@pytest.mark.parametrize("name", run.CASES)
def test_command_line_of_a_case(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The script of every case accepts its arguments."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    script, *words = run.command(run.CASES[name], torch=sys.executable)
    arguments = arguments_of(script, words)
    for flag, value in pairwise(words):
        if flag.startswith("--") and not value.startswith("--"):
            values = arguments[flag.removeprefix("--").replace("-", "_")]
            assert value in map(str, values if isinstance(values, list | tuple) else [values])


def test_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    """Words, flags with and without values, several values, and what is not among the choices."""
    read = functools.partial(harness.read, background.Arguments)
    found = read(["shares", "--shares", "0.5", "1", "--network", "resnet50", "--everything"])
    assert (found.what, found.slide, found.network) == ("shares", None, "resnet50")
    assert (found.shares, found.everything, found.store) == ([0.5, 1.0], True, None)
    assert read(["step", "a.svs"]) == background.Arguments("step", "a.svs")
    for words in ([], ["all"], ["shares", "--shares", "few"]):
        with pytest.raises(SystemExit):
            read(words)
    assert "--shares: invalid float value: 'few'" in capsys.readouterr().err


@pytest.mark.slow
def test_a_function_in_a_process_of_its_own() -> None:
    line = harness.apart(models_let_go.kept, models_let_go.Arguments((), 1, 1), "functions")
    assert line.keys() == {"kept_bytes", "kept_objects"}


def test_ways_in_turn() -> None:
    """A way that fails is left out, and ratios are those of the same round."""
    order: list[str] = []

    def run(way: str) -> dict[str, float]:
        order.append(way)
        if way == "broken":
            raise subprocess.CalledProcessError(1, way)
        return {"seconds": len(order) * (2 if way == "b" else 1)}

    found = harness.in_turn(("a", "broken", "b"), 2, run)
    assert order == ["a", "broken", "b", "a", "b"]
    assert found == {"a": [{"seconds": 1}, {"seconds": 4}], "b": [{"seconds": 6}, {"seconds": 10}]}
    assert harness.ratio(found["b"], found["a"], "seconds") == (6 + 2.5) / 2


def test_commands_in_documents(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scripts accept the arguments that documents name, unless at an earlier commit, and cases exist.

    Documents name `gpu_counts.py` with some of its arguments.
    """
    monkeypatch.setattr(sys, "path", list(sys.path))
    texts = [path.read_text() for path in (ROOT / "docs").rglob("*.md")]
    command = r"`(?:python benchmarks/)?(\w+\.py)((?:\s[^`]+)?)`(?!,? at \w{7})"
    found = {match for text in texts for match in re.findall(command, text)}
    names = {script: words.split() for script, words in found if words}
    assert names["run.py"]
    for script, words in found:
        words = words.split()
        if script == "run.py":
            assert {*words} <= {*run.CASES, "--list", "--report", "NAME"}
        elif words and script != "gpu_counts.py" and (ROOT / "benchmarks" / script).exists():
            arguments_of(script, words)


@pytest.mark.parametrize("name", gpu_series.STAGES)
def test_command_line_of_a_stage(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The script of every stage of a series accepts its arguments, and budgets shrink with the area."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    arguments = gpu_series.Arguments(side=2048)
    script, *words = gpu_series.command(gpu_series.STAGES[name], arguments)
    found = arguments_of(script, words)
    assert found.get("device") in (None, "7500MB", "2000MB")
    sides = ("side", "plain", "plain_without_xla", "default", "streamed")
    assert [found[s] for s in sides if found.get(s)] in ([2048], [[2048]], [[4096]])


def test_lines_of_stages(capfd: pytest.CaptureFixture[str]) -> None:
    """A stage that exceeds its limit keeps the lines before, and a stage that fails has a line too."""
    arguments = gpu_series.Arguments(side=64)
    endless = """import time; print('{"case": 1}', flush=True); time.sleep(60)"""
    ends = []
    for code in (endless, "raise SystemExit('no GPU')"):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(gpu_series, "command", lambda *_, code=code: ["-c", code])
            patch.setattr(gpu_series, "HERE", Path())
            stage = gpu_series.Stage("", 2)
            ends.append([json.loads(x) for x in gpu_series.lines_of("a", stage, arguments)])
    assert ends[0][0]["case"] == 1
    assert ends[0][1]["error"] == "not done in 2 s"
    assert (ends[1][0]["error"], ends[1][0]["last"]) == ("failed", ["no GPU"])
    assert "no GPU" in capfd.readouterr().err


def test_unknown_arguments_are_refused() -> None:
    """The command lines above would fail with an argument that a script does not have."""
    with pytest.raises(SystemExit):
        harness.read(compare.Arguments, ["--sides", "128"])


def test_report() -> None:
    """The README has the table of the results, as `python benchmarks/run.py --report` writes it."""
    lines = run.table(x for x in run.results() if "memory_ratio" in x)
    assert lines[0].startswith("| network | size | way |")
    assert "\n".join(lines) in (ROOT / "benchmarks/README.md").read_text()


@pytest.mark.slow
def test_features(tmp_path: Path) -> None:
    slides = [str(write_square(tmp_path / f"{name}.tif")) for name in "ab"]
    (line,) = printed("features.py", *slides, "--tile", "80", "--batch-size", "5")
    assert (line["slides"], line["tiles"], line["width"]) == (2, 32, 512)
    assert (line["case"], line["encoder"], line["exit_code"]) == ("features", "resnet18", 0)
    assert line["peak_bytes"] > line["base_bytes"] > 0
    assert line["seconds"] > line["slide_seconds"] > 0


def test_overlap_of_copies_and_kernels() -> None:
    """Copies from 0 to 10 and 20 to 30, of which kernels hide 5 and all; what runs twice counts once."""
    second = 10**12
    events = [
        ((0, 10 * second), "MemcpyH2D"),
        ((20 * second, 30 * second), "MemcpyD2H"),
        ((5 * second, 40 * second), "conv_kernel"),
        ((6 * second, 7 * second), "add_kernel"),
        ((50 * second, 60 * second), "Memset"),
    ]
    found = gpu_profile.overlap_figures(events)
    assert gpu_profile.span(events) == 60
    assert found["kernel_seconds"] == 35
    assert (found["to_device_seconds"], found["to_device_hidden"]) == (10, 0.5)
    assert (found["to_host_seconds"], found["to_host_hidden"]) == (10, 1)
    assert (found["copy_seconds"], found["copy_hidden"]) == (20, 0.75)
    assert found["events"] == 5


def test_picture_of_saved_profiles(tmp_path: Path) -> None:
    shares = {"products": 0.5, "other arithmetic": 0.25, "waiting": 0.25}
    line = {"case": "profile resnet18", "commit": "0123456789", "size": [64, 64, 3]}
    line |= {"seconds": 2.0, "untraced_seconds": 1.0}
    line["shares"] = dict.fromkeys(profile.KINDS, 0.0) | shares
    lines = [line | {"way": way} for way in ("plain", "streamed")]
    profile.plot(lines, str(tmp_path / "a.png"))
    with Image.open(tmp_path / "a.png") as picture:
        assert min(picture.size) > 300
        colours = {tuple(c[:3]) for _, c in picture.convert("RGB").getcolors(2**20) or []}
    assert {(31, 119, 180), (255, 127, 14)} <= colours  # of the first two kinds
    for line in profile.saved_lines():
        assert sum(line["shares"].values()) == pytest.approx(1, abs=1e-3)


@pytest.mark.slow
def test_picture_of_a_profile(tmp_path: Path) -> None:
    """A trace is read again, and drawn with three rows."""
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    space = xplane_pb2.XSpace()
    plane = space.planes.add(name="/device:GPU:0")
    for number, (name, stream) in enumerate((("MemcpyH2D", 1), ("conv", 2), ("MemcpyD2H", 3))):
        plane.event_metadata[number].name = name
        line = plane.lines.add(name=f"Stream #{stream}", timestamp_ns=1000)
        line.events.add(metadata_id=number, offset_ps=number * 10**9, duration_ps=2 * 10**9)
    trace, picture = tmp_path / "step.xplane.pb.gz", tmp_path / "step.png"
    trace.write_bytes(gzip.compress(space.SerializeToString()))
    (found,) = printed("gpu_profile.py", trace, "--plot", picture, "--between", 0, 0.01)
    assert found["span_seconds"] == 0.004
    assert (found["kernel_seconds"], found["copy_seconds"]) == (0.002, 0.004)
    assert (found["to_device_hidden"], found["to_host_hidden"]) == (0.5, 0.5)
    with Image.open(picture) as drawn:
        assert drawn.height > 100


def test_differences_are_relative_to_the_norm() -> None:
    theirs = {"loss": [np.array(3.0)], "gradients": [np.array([3.0]), np.array([[4.0]])]}
    ours = {"loss": [np.array(3.0)], "gradients": [np.array([3.0]), np.array([[4.5]])]}
    assert gpu.differences(ours, theirs) == {"loss": 0, "gradients": 0.1}
