"""Compile a program of TensorFlow for an H100 without one, in a Python that has JAX; does not need tfbig.

    python benchmarks/xla_kernels.py PROGRAM... [--text FILE]

PROGRAM is a serialized `HloModuleProto`, as `gpu_counts.py kernels` writes it. JAX's plug-in for CUDA compiles for a
described GPU. It and the assembler of CUDA are installed by

    pip install jax==0.10.2 jaxlib==0.10.2 jax-cuda12-pjrt==0.10.2 jax-cuda12-plugin==0.10.2 nvidia-cuda-nvcc-cu12

Prints a JSON line for each program with the kernels, the bytes of their operands and results, and the bytes of memory
besides arguments and results. Loops count as often as they run, if XLA knows how often, and of branches the longest. No
kernels are tried, as there is no GPU, and this XLA is some months newer than that of TensorFlow 2.21, so counts are an
estimate.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import sys
import sysconfig
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

H100 = """
platform_name: "CUDA"
device_description_str: "NVIDIA H100 80GB HBM3"
dnn_version_info { major: 9 minor: 7 }
runtime_version { major: 12 minor: 8 patch: 0 }
gpu_device_info {
  cuda_compute_capability { major: 9 }
  core_count: 132
  fpus_per_core: 128
  clock_rate_ghz: 1.98
  device_memory_size: 84929347584
  memory_bandwidth: 3352320000000
  l2_cache_size: 52428800
  shared_memory_per_core: 233472
  shared_memory_per_block: 49152
  shared_memory_per_block_optin: 232448
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
  threads_per_core_limit: 2048
  threads_per_block_limit: 1024
  threads_per_warp: 32
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
}
"""
"""The GPU that is compiled for, a `GpuTargetConfigProto`."""

BITS = re.compile(r"[a-z]+(\d+)")
ARRAY = re.compile(r"\b(pred|[a-z]+\d+)\[([\d,]*)\]")
COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.-]+) \(.*\) -> .*\{$")
INSTRUCTION = re.compile(r"^(?:ROOT )?%?([\w.-]+) = (.*)$")
NAME = re.compile(r"%([\w.-]+)")
TRIPS = re.compile(r'known_trip_count":\{"n":"(\d+)"')
TARGET = re.compile(r'custom_call_target="([^"]+)"')
KIND = re.compile(r"kind=(\w+)")

NO_KERNELS = (
    *("parameter", "constant", "get-tuple-element", "tuple", "bitcast"),
    *("after-all", "partition-id", "replica-id"),
)
"""Operations of HLO that run nothing on the GPU."""


CALLS = {
    "while": "body",
    "call": "to_apply",
    "conditional": "branch_computations|true_computation|false_computation",
}
"""Operations of HLO whose kernels are those of other computations, and the attributes that name these."""


class Kernel(NamedTuple):
    """A kernel or a call of a library.

    Args:
        kind: Its operation, with the kind of a fusion, or the function of a library.
        moved: Bytes of its operands and results.
        times: How often it runs.
    """

    kind: str
    moved: int
    times: int


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("programs", type=Path, nargs="+", help="serialized HloModuleProto")
    parser.add_argument("--text", type=Path, help="file for the last compiled program, as text")
    arguments = parser.parse_args()
    prepare()
    for program in arguments.programs:
        began = time.perf_counter()
        text, memory = compiled(program.read_bytes())
        seconds = time.perf_counter() - began
        print(json.dumps({"compile_seconds": round(seconds, 1), **figures(text), **memory}))
    if arguments.text is not None:
        arguments.text.write_text(text)


def prepare() -> None:
    """Let JAX find the assembler of CUDA, and its own modules."""
    del sys.path[0]  # otherwise JAX imports profile.py of this folder instead of Python's module
    cuda = Path(sysconfig.get_paths()["purelib"], "nvidia/cuda_nvcc")
    flags = ["--xla_gpu_autotune_level=0", "--xla_gpu_enable_triton_gemm=false"]
    os.environ.setdefault("XLA_FLAGS", " ".join([*flags, f"--xla_gpu_cuda_data_dir={cuda}"]))
    os.environ["PATH"] = f"{cuda / 'bin'}:{os.environ['PATH']}"
    os.environ["JAX_SKIP_CUDA_CONSTRAINTS_CHECK"] = "1"  # there is no driver
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


def compiled(program: bytes) -> tuple[str, dict[str, int]]:
    """Return the text of a program compiled for an H100, and its bytes of memory."""
    from jax._src import compiler
    from jax._src.interpreters import mlir
    from jax._src.lib import xla_client
    from jax._src.lib.mlir import ir
    from jax.experimental import topologies

    topology = topologies.get_topology_desc(platform="cuda", target_config=H100, topology="1x1x1")
    devices = tuple(topologies.make_mesh(topology, (1,), ("device",)).devices.flat)
    options = compiler.get_compile_options(num_replicas=1, num_partitions=1)
    with mlir.make_ir_context():
        module = ir.Module.parse(xla_client._xla.mlir.hlo_to_stablehlo(program))
        module = ir.Module.parse(without_copies(str(module)))
        client, targets = devices[0].client, xla_client.DeviceList(devices)
        executable = client.compile(module, targets, options)
    stats = executable.get_compiled_memory_stats()
    memory = {
        "argument_bytes": stats.argument_size_in_bytes,
        "result_bytes": stats.output_size_in_bytes,
        "temporary_bytes": stats.temp_size_in_bytes,
    }
    return executable.hlo_modules()[0].to_string(), memory


def without_copies(text: str) -> str:
    """Return a module in StableHLO whose copies, which StableHLO does not have, are reshapes to the same shape."""
    copy = r'"?mhlo\.copy"?\s*\(?(%[\w#]+)\)?[^:\n]*: \(?(tensor<[^>]*>)\)?(?: -> tensor<[^>]*>)?'
    return re.sub(copy, r"stablehlo.reshape \1 : (\2) -> \2", text)


def figures(text: str) -> dict[str, Any]:
    """Return the number of kernels of a compiled program, the bytes that they move, and both by kind."""
    found = list(kernels(computations(text), "ENTRY"))
    count, moved = Counter[str](), Counter[str]()
    for kernel in found:
        count[kernel.kind] += kernel.times
        moved[kernel.kind] += kernel.times * kernel.moved
    return {
        "kernels": count.total(),
        "moved_bytes": moved.total(),
        "kinds": {kind: [count[kind], size] for kind, size in moved.most_common()},
    }


def computations(text: str) -> dict[str, list[str]]:
    """Return the instructions of each computation of a program by its name; "ENTRY" is the program itself."""
    found: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in text.splitlines():
        if head := COMPUTATION.match(line):
            lines = found.setdefault("ENTRY" if head[1] else head[2], [])
        elif line.startswith("  "):
            lines.append(line.strip())
    return found


def kernels(program: dict[str, list[str]], name: str, times: int = 1) -> Iterator[Kernel]:
    """Yield the kernels of a computation that runs some number of times."""
    types: dict[str, str] = {}
    for line in program[name]:
        instruction = INSTRUCTION.match(line)
        if instruction is None:
            continue
        result, rest = split_type(instruction[2])
        types[instruction[1]] = result
        operation, _, rest = rest.partition("(")
        called = max(inner(operation, rest), key=lambda each: len(program[each]), default=None)
        if called is not None:
            trips = TRIPS.search(rest) if operation == "while" else None
            yield from kernels(program, called, times * (int(trips[1]) if trips else 1))
        elif operation not in NO_KERNELS:
            operands = NAME.findall(rest.partition("), ")[0])
            moved = sum(bytes_of(types.get(name, "")) for name in operands)
            yield Kernel(kind_of(operation, rest), bytes_of(result) + moved, times)


def inner(operation: str, rest: str) -> list[str]:
    """Return the computations whose kernels an instruction runs: the body of a loop, or one of the branches."""
    if operation not in CALLS:
        return []
    found = re.findall(rf"(?:{CALLS[operation]})=\{{?([^}}, ]+(?:, %[^}}, ]+)*)", rest)
    return [name.removeprefix("%") for names in found for name in names.split(", ")]


def kind_of(operation: str, rest: str) -> str:
    """Return what kind of kernel an instruction is."""
    if operation == "fusion" and (found := KIND.search(rest)):
        return f"fusion {found[1]}"
    if operation == "custom-call" and (found := TARGET.search(rest)):
        return found[1]
    return operation


def split_type(text: str) -> tuple[str, str]:
    """Return the type that an instruction begins with, and the rest after the space."""
    depth = 0
    for position, letter in enumerate(text):
        depth += (letter in "([{") - (letter in ")]}")
        if letter == " " and not depth:
            return text[:position], text[position + 1 :]
    return text, ""


def bytes_of(type_text: str) -> int:
    """Return the bytes of all arrays of a type."""
    total = 0
    for element, sizes in ARRAY.findall(type_text):
        bits = BITS.match(element)
        size = max(int(bits[1]) // 8, 1) if bits else 1
        total += size * math.prod(map(int, filter(None, sizes.split(","))))
    return total


if __name__ == "__main__":
    main()
