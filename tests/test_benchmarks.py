"""Benchmarks run, on small images, and their results make a report."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from samples import ROOT

from benchmarks import profile, run


def printed(script: str, *words: str) -> list[dict]:
    found = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / script), *words],
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    return [json.loads(line) for line in found.stdout.splitlines() if line.startswith("{")]


@pytest.mark.slow
def test_ways_are_compared_in_turn() -> None:
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
def test_a_profile_adds_up() -> None:
    """Of a model that pools: oneDNN's gradient of the pooling runs, inside the loop too, not TensorFlow's own."""
    words = ["--network", "resnet18", "--side", "256", "--device", "8MB"]
    script = [sys.executable, str(ROOT / "benchmarks/profile.py"), *words, "--operations", "99"]
    done = subprocess.run(script, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    assert sum(found["shares"].values()) == pytest.approx(1, abs=1e-3)
    assert found["shares"]["products"] > 0.2
    names = [line.split()[0] for line in done.stderr.splitlines() if line.endswith(" s")]
    if "_MklNativeConv2D" in names:
        assert "_MklNativeMaxPoolGrad" in names
        assert "MaxPoolGrad" not in names


def test_a_moment_counts_for_the_first_kind_that_ran() -> None:
    events = [(0, 10, "Conv2D"), (5, 20, "Mul"), (18, 30, "PyFunc"), (40, 50, "MatMul")]
    found = profile.shares(events)
    expected = {"products": 20, "other arithmetic": 10, "calls to Python": 10, "waiting": 10}
    assert found == {kind: expected.get(kind, 0) / 50 for kind in (*profile.KINDS, "waiting")}


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
def test_operations_have_a_kind(operation: str, kind: str) -> None:
    assert profile.kind_of(operation) == kind


def test_every_case_names_a_script_and_its_flags() -> None:
    for name, case in run.CASES.items():
        script, *words = case.words.split()
        text = (ROOT / "benchmarks" / script).read_text()
        for word in words:
            assert not word.startswith("--") or f'"{word}"' in text, f"{name}: {word}"


def test_the_report_is_that_of_the_results() -> None:
    """`python benchmarks/run.py --report` writes it."""
    lines = run.table(x for x in run.results() if "memory_ratio" in x)
    assert lines[0].startswith("| network | size | way |")
    assert "\n".join(lines) in (ROOT / "benchmarks/README.md").read_text()
