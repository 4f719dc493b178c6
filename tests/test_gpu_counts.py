"""What decides the speed of a step on a GPU, counted without one: these numbers may fall, but not grow.

`benchmarks/gpu_counts.py` prints them. If a change lowers one, lower its bound here too: a few percent above it.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import keras
import pytest
from samples import ROOT

from benchmarks import gpu_counts, report, xla_kernels

OPERATIONS = {
    (
        "streamed",
        "conv_chain",
        128,
    ): 940,  # 895; 726 before sums of pixels were added up in float64, of chunks
    ("streamed", "resnet18", 256): 4050,  # 3884; 3228 before
    ("compiled", "conv_chain", 128): 275,  # 262
    ("compiled", "resnet18", 256): 990,  # 959
}
"""Most operations that one strip executes on the device in a training step in mixed_bfloat16, by way, network and side.

Plain Keras without XLA executes 3086 for ResNet-18. Processors differ in about 25, by their kernels for bfloat16.
"""

WRITES = 115
"""Most writes into images that the device keeps, of ResNet-18 at 8192 x 8192 within 8 GB: 105; 153 with 15 strips."""

CONVOLUTIONS = 18
"""Most distinct convolutions of its forward pass: 17; 27 with strips of as many rows as they need. cuDNN tries kernels
for each."""


@pytest.mark.slow
@pytest.mark.parametrize(("way", "network", "side"), OPERATIONS)
def test_executed_operations_do_not_grow(way: str, network: str, side: int) -> None:
    words = ["executed", way, side, "--device", "1GB", "--network", network]
    line = report.in_own_process([ROOT / "benchmarks/gpu_counts.py", *words])
    assert line["strips"] == 1
    assert 100 < line["executed"][gpu_counts.ACCELERATOR] <= OPERATIONS[way, network, side]
    assert sum(line["most_frequent"].values()) <= line["executed"][gpu_counts.ACCELERATOR]


@pytest.mark.slow
def test_strips_write_in_place() -> None:
    """Each strip that writes a kept image changes it in place, and where gradients overlap, twice."""
    words = ["executed", "streamed", 256, "--device", "24MB", "--network", "conv_chain"]
    line = report.in_own_process([ROOT / "benchmarks/gpu_counts.py", *words])
    assert line["strips"] > 1
    assert line["kept"] > 0
    assert line["writes"] <= line["in_place"] <= 2 * line["writes"]


@pytest.mark.slow
def test_copies_and_shapes_do_not_grow() -> None:
    keras.config.set_dtype_policy("mixed_float16")
    counts = gpu_counts.planned_counts("resnet18", 8192, "8GB")
    assert counts["strips"] > 1
    assert counts["plain_convolutions"] == 11
    assert 11 < counts["convolutions"] <= CONVOLUTIONS
    assert counts["kept"] < counts["writes"] <= WRITES


PROGRAMS = 42
"""Most programs of strips in its forward pass: 39, of 45 strips; 20 if all strips of a sweep shared one."""


def test_programs_of_strips_do_not_grow() -> None:
    """Strips that are alike share a program."""
    keras.config.set_dtype_policy("mixed_float16")
    counts = gpu_counts.planned_counts("resnet18", 8192, "8GB", compiles=True)
    assert counts["sweeps"] <= counts["programs"] <= PROGRAMS < counts["strips_of_all_sweeps"]


def test_one_strip_has_the_convolutions_of_plain_keras() -> None:
    """Three of five layers have the same shape; a sweep of one strip has one shape."""
    counts = gpu_counts.planned_counts("conv_chain", 64, "1GB")
    assert (counts["strips"], counts["sweeps"]) == (1, 6)
    assert counts["convolutions"] == counts["plain_convolutions"] == 2
    assert counts["strip_shapes"] == counts["strips_of_all_sweeps"] == 6
    assert counts["writes"] == 2 * counts["kept"] == 10


def test_writes_of_a_plan() -> None:
    """Forward and replayed, strips write images; backward, they add to the gradients of images that they read."""
    first, second = (
        SimpleNamespace(index=n, reads=reads, writes=writes)
        for n, (reads, writes) in enumerate((((0,), (1, 2)), ((1, 2), (3,))))
    )
    replay = SimpleNamespace(index=1, reads=(0,), writes=(1,))
    strips = {("forward", 0): 5, ("both", 1): 7, ("replay", 1): 11, ("backward", 0): 13}
    moments = [SimpleNamespace(kind=kind, sweep=sweep) for kind, sweep in strips]

    def cost_of(moment: Any) -> SimpleNamespace:
        return SimpleNamespace(strips=strips[moment.kind, moment.sweep])

    plan = SimpleNamespace(
        sweeps=[first, second],
        layout=SimpleNamespace(replays=[replay], kept=frozenset({1, 2})),
        timeline=SimpleNamespace(moments=moments),
        cost_of=cost_of,
    )
    assert gpu_counts.writes(plan) == 5 * 2 + 7 * 2 + 11 * 1


PROGRAM = """HloModule step, is_scheduled=true

%fused (p: f16[4,8]) -> f16[4,8] {
  %p = f16[4,8]{1,0} parameter(0)
  ROOT %a = f16[4,8]{1,0} add(%p, %p)
}

%body (s: (s32[], f16[4,8])) -> (s32[], f16[4,8]) {
  %s = (s32[], f16[4,8]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%s), index=0
  %x = f16[4,8]{1,0} get-tuple-element(%s), index=1
  %y = f16[4,8]{1,0} fusion(%x), kind=kLoop, calls=%fused
  ROOT %t = (s32[], f16[4,8]{1,0}) tuple(%i, %y)
}

%one (u: f16[4,8]) -> f16[4,8] {
  %u = f16[4,8]{1,0} parameter(0)
  %v = f16[4,8]{1,0} copy(%u)
  ROOT %w = f16[4,8]{1,0} copy(%v)
}

%other (o: f16[4,8]) -> f16[4,8] {
  ROOT %o = f16[4,8]{1,0} parameter(0)
}

ENTRY %main (a: f16[4,8], b: pred[]) -> (f16[4,8], u8[0]) {
  %a = f16[4,8]{1,0} parameter(0)
  %b = pred[] parameter(1)
  %zero = s32[] constant(0)
  %tuple = (s32[], f16[4,8]{1,0}) tuple(%zero, %a)
  %loop = (s32[], f16[4,8]{1,0}) while(%tuple), body=%body, backend_config={"known_trip_count":{"n":"3"}}
  %last = f16[4,8]{1,0} get-tuple-element(%loop), index=1
  %c = f16[4,8]{1,0} conditional(%b, %last, %last), true_computation=%one, false_computation=%other
  ROOT %k = (f16[4,8]{1,0}, u8[0]{0}) custom-call(%c, %last), custom_call_target="__cudnn$convForward"
}
"""


def test_kernels_of_a_compiled_program() -> None:
    """A loop of 3 kernels, a branch of 2 copies and one call of a library, each of arrays of 64 bytes."""
    found = xla_kernels.figures(PROGRAM)
    assert found["kernels"] == 3 + 2 + 1
    assert found["moved_bytes"] == 64 * (3 * 2 + 2 * 2 + 3)
    assert found["kinds"] == {
        "fusion kLoop": [3, 384],
        "copy": [2, 256],
        "__cudnn$convForward": [1, 192],
    }


def test_branches_of_a_compiled_program() -> None:
    several = "%i, %a, %b), branch_computations={%first, %second.1}, metadata={}"
    assert xla_kernels.inner("conditional", several) == ["first", "second.1"]
    assert xla_kernels.inner(
        "conditional", "%b, %x), true_computation=%one, false_computation=%two"
    ) == ["one", "two"]
    assert xla_kernels.inner("fusion", "%x), kind=kLoop, calls=%fused") == []


@pytest.mark.slow
@pytest.mark.parametrize("what", gpu_counts.PARTS)
def test_programs_for_a_compiler(what: str) -> None:
    """A step has convolutions and the update of the weights, with powers of its rates; the others one of them."""
    keras.config.set_dtype_policy("mixed_bfloat16")
    program = gpu_counts.serialized("conv_chain", 32, what)
    assert (b"convolution" in program) == (what != "update")
    assert (b"power" in program) == (what != "gradients")
