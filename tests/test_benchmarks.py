"""Benchmarks on small images, their command lines, and the report of their results."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from itertools import pairwise

import pytest
from samples import ROOT

from benchmarks import compare, profile, run


def printed(script: str, *words: str) -> list[dict]:
    """Run a benchmark and return the JSON lines that it prints."""
    process = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / script), *words],
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    return [json.loads(line) for line in process.stdout.splitlines() if line.startswith("{")]


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


@pytest.mark.parametrize("name", run.CASES)
def test_command_line_of_a_case(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The script of every case accepts its arguments."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    script, *words = run.command(run.CASES[name], torch=sys.executable)
    module = importlib.import_module(f"benchmarks.{script.removesuffix('.py')}")
    arguments = vars(module.parse_arguments(words))
    for flag, value in pairwise(words):
        if flag.startswith("--"):
            values = arguments[flag.removeprefix("--").replace("-", "_")]
            assert value in map(str, values if isinstance(values, list) else [values])


def test_unknown_arguments_are_refused() -> None:
    """The command lines above would fail with an argument that a script does not have."""
    with pytest.raises(SystemExit):
        compare.parse_arguments(["--sides", "128"])


def test_report() -> None:
    """The README has the table of the results, as `python benchmarks/run.py --report` writes it."""
    lines = run.table(x for x in run.results() if "memory_ratio" in x)
    assert lines[0].startswith("| network | size | way |")
    assert "\n".join(lines) in (ROOT / "benchmarks/README.md").read_text()
