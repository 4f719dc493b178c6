"""Run benchmarks by name, save the lines that they print, and draw tables and plots from them.

    python benchmarks/run.py --list
    python benchmarks/run.py modes-2048 unet [--torch PYTHON]
    python benchmarks/run.py --report

Lines go to `results.jsonl`, with the command that prints them again. `--report` runs no benchmark: it writes
`benchmarks/README.md` and `modes.png` from the saved lines, the last line of each case and size.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
HERE = ROOT / "benchmarks"
sys.path[0] = str(ROOT)

from benchmarks.report import RESULTS


@dataclass(frozen=True)
class Case:
    """One benchmark.

    Args:
        about: Question that it answers.
        words: Script and its arguments.
        torch: Whether it can compare with PyTorch.
        gpu: Whether it needs a GPU.
    """

    about: str
    words: str
    torch: bool = False
    gpu: bool = False


_MODES = "plain remat unified streamed streamed-small bfloat16-stores plain-bfloat16 bfloat16"
_TORCH = "torch torch-checkpoint torch-save_on_cpu"
_GPU = "--optimizer adamw --policy mixed_float16 --warmup 5 --steps 10 --rounds 1"
_HOSTS = {
    "ConvNeXtTiny": "2.4GB",
    "DenseNet121": "2.4GB",
    "EfficientNetB0": "1.6GB",
    "MobileNetV2": "1.2GB",
}
"""Host memory of the way with less of it, for networks of `keras.applications` at 1536 x 1536."""

CASES = {
    "modes-2048": Case(
        "ResNet-18 at 2048 x 2048 in all modes",
        f"compare.py --network resnet18 --side 2048 --host 1.1GB --rounds 3 --steps 2 --ways {_MODES}",
        torch=True,
    ),
    "peers": Case(
        "ResNet-18 at 1536 x 1536 in plain Keras, streamed, and in other frameworks",
        "compare.py --network resnet18 --side 1536 --rounds 2 --steps 1 --ways plain streamed",
        torch=True,
    ),
    "modes-4096": Case(
        "ResNet-18 at 4096 x 4096 in all modes",
        "compare.py --network resnet18 --side 4096 --host 3.8GB --rounds 2 --steps 2 --ways "
        "plain unified streamed streamed-small plain-bfloat16 bfloat16",
    ),
    "resnet50-2048": Case(
        "ResNet-50 at 2048 x 2048, and with less memory",
        "compare.py --network resnet50 --side 2048 --device 96MB --host 2GB --ways "
        "plain streamed bfloat16-stores bfloat16-stores-small remat",
    ),
    **{
        f"{name}-1536": Case(
            f"{name} at 1536 x 1536, and with less memory",
            f"compare.py --network {name} --side 1536 --rounds 2 --host {host} --ways "
            "plain streamed streamed-small",
        )
        for name, host in _HOSTS.items()
    },
    "chain": Case(
        "five convolutions with BatchNormalization at 3072 x 3072",
        "compare.py --network conv_chain --side 3072 --device 96MB",
    ),
    "frozen": Case(
        "ResNet-18 with frozen BatchNormalization at 2240 x 2240, what lightstream is made for",
        "compare.py --network resnet18_frozen --side 2240 --device 128MB --host 1.1GB --ways "
        "plain streamed streamed-small",
        torch=True,
    ),
    "unet": Case("one gigapixel through the U-Net, a training step", "gigapixel_unet.py"),
    "gigapixel-resnet18": Case(
        "one gigapixel through ResNet-18 with BatchNormalization, a training step",
        "background.py step --network resnet18 --side 32768 --tissue 1.0 --everything --host 18GB --disk 50GB "
        "--strips 1.5GB --store bfloat16",
    ),
    "volume": Case(
        "a whole CT volume through the 3-D U-Net of nnU-Net with a quarter of its features, a training step",
        "volumes.py --features 8 16 32 64 80 80 --host 10GB --disk 40GB --strips 2GB",
    ),
    "first-step-512": Case(
        "the first step and the first prediction, plain and streamed", "first_step.py --rounds 2"
    ),
    "first-step-1536": Case(
        "the same where images stream",
        "first_step.py --networks ResNet50 DenseNet121 --side 1536 --ways plain streamed",
    ),
    "background-resnet18": Case(
        "time against the share of an image that is not background",
        "background.py shares --network resnet18 --side 4096 --shares 0.02 0.1 0.25 0.5 0.75 1",
    ),
    "background-resnet18-8192": Case(
        "the same for a larger image, with stores in bfloat16",
        "background.py shares --network resnet18 --side 8192 --shares 0.02 0.2 --rounds 1 "
        "--store bfloat16",
    ),
    "background-resnet50": Case(
        "the same for ResNet-50",
        "background.py shares --network resnet50 --side 3072 --shares 0.05 0.25 0.5 1 --rounds 1",
    ),
    "mil": Case(
        "a step on a bag of 500 tiles",
        "mil_step.py --instances 500 --side 84 --at-once 125 --norm none",
    ),
    "features": Case(
        "features of the tiles of three slides, by ResNet-18", "features.py --encoder resnet18"
    ),
    "features-uni": Case(
        "the same by a vision transformer of 303 million parameters, with random weights",
        "features.py --encoder uni",
    ),
    "scene": Case(
        "a prediction of a scene of a gigapixel into a COG, and its memory",
        "scenes.py --size 34000x31000",
    ),
    "scene-1": Case("the same for a hundredth of 108000 x 97000", "scenes.py --size 10800x9700"),
    "scene-whole": Case("the same for 10.5 gigapixels", "scenes.py --size 108000x97000"),
    "scene-nodata": Case(
        "the same for a scene with 60 % nodata, computed, skipped and killed meanwhile",
        "scenes.py --size 12288x12288 --nodata 0.6 --ways compute skip killed",
    ),
    "patchgd": Case("memory of PatchGD over the side of the image", "patchgd_memory.py"),
    "profile": Case("where the time of a step goes", "profile.py --network resnet18 --side 2048"),
    "gpu-counts-executed": Case(
        "the operations of a streamed step of ResNet-18 on a GPU, counted without one",
        "gpu_counts.py executed streamed 256",
    ),
    "gpu-counts-executed-compiled": Case(
        "the same with strips that XLA compiles", "gpu_counts.py executed compiled 256"
    ),
    "gpu-counts-executed-plain": Case(
        "the same of plain Keras without XLA", "gpu_counts.py executed plain 256"
    ),
    "gpu-counts-copies": Case(
        "writes into images on a GPU, and shapes of strips, counted without one",
        "gpu_counts.py copies 8192 --device 8GB",
    ),
    "gpu-exact": Case(
        "a streamed step of ResNet-18 against the plain one", "gpu.py exact", gpu=True
    ),
    "gpu-copies": Case("copies between host and GPU", "gpu.py copies", gpu=True),
    **{
        f"gpu-overlap-{way}": Case(
            f"the share of copies that arithmetic hides: {about}",
            f"gpu.py overlap --way {way}",
            gpu=True,
        )
        for way, about in (
            ("default", "as it is"),
            ("staged", "memory that is not page-locked"),
            ("two", "two logical devices on one GPU"),
            ("timestamped", "TensorFlow's allocator with time stamps"),
        )
    },
    "gpu-sizes": Case(
        "five convolutions by the protocol of the paper, in one process",
        "gpu.py sizes --policy mixed_float16 --plain 4096 --plain-without-xla 4096 --streamed 4096 16384 "
        "--device 60GB --warmup 5 --steps 10",
        gpu=True,
    ),
    "gpu-sizes-resnet18": Case(
        "ResNet-18 by the protocol of the paper, in one process",
        "gpu.py sizes --network resnet18 --policy mixed_float16 --plain 4096 8192 --plain-without-xla 4096 8192 "
        "--streamed 4096 8192 16384 32768 --device 60GB --warmup 5 --steps 10",
        gpu=True,
    ),
    **{
        f"gpu-{network}-{side}": Case(
            f"{network} at {side} x {side} on a GPU, as the paper measures",
            f"compare.py --network {network} --side {side} {_GPU} --ways {ways}",
            torch=True,
            gpu=True,
        )
        for network in ("resnet18", "resnet50")
        for side, ways in (
            (4096, "plain plain-without-xla streamed"),
            (8192, "plain plain-without-xla streamed"),
            (16384, "streamed"),
            (32768, "streamed"),
        )
    },
}


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("cases", nargs="*", choices=[*CASES, []], metavar="CASE")
    parser.add_argument("--list", action="store_true", help="list the benchmarks")
    parser.add_argument("--report", action="store_true", help="write tables and plots")
    parser.add_argument("--torch", help="a Python with PyTorch; its ways run too")
    arguments = parser.parse_args()
    if arguments.list:
        for name, case in CASES.items():
            print(f"{name:20} {case.about}{' (needs a GPU)' if case.gpu else ''}")
    for name in arguments.cases:
        run(name, CASES[name], arguments.torch)
    if arguments.report or arguments.cases:
        write_report()


def command(case: Case, torch: str | None = None) -> list[str]:
    """Build the script of a case and its arguments, with the ways of PyTorch if a Python has it."""
    words = case.words.split()
    if torch and case.torch:
        words += [*_TORCH.split(), "--torch", torch]  # `--ways` is last
    return words


def run(name: str, case: Case, torch: str | None) -> None:
    """Run a case and save its lines."""
    script, *words = command(case, torch)
    print(f"{name}: {script} {' '.join(words)}", file=sys.stderr, flush=True)
    with subprocess.Popen(
        [sys.executable, str(HERE / script), *words], stdout=subprocess.PIPE, text=True, cwd=HERE
    ) as running:
        assert running.stdout is not None
        for line in running.stdout:
            if line.startswith("{"):
                figures = json.loads(line) | {"how": f"python benchmarks/run.py {name}"}
                with RESULTS.open("a") as file:
                    file.write(json.dumps(figures) + "\n")
            print(line, end="", flush=True)
    if running.returncode:
        sys.exit(f"{name} failed: {script} ended with {running.returncode}")


# ------------------------------------------------------------------------------------- report


def results() -> list[dict[str, Any]]:
    """Return the last line of every case, way and size."""
    lines = [json.loads(line) for line in RESULTS.read_text().splitlines()]
    last = {(x["case"], x.get("way"), str(x.get("size"))): x for x in lines}
    return list(last.values())


def write_report() -> None:
    """Write `README.md` of the benchmarks, and the plot of the modes."""
    figures = [x for x in results() if "memory_ratio" in x]
    text = [
        "# Benchmarks",
        "",
        "Made by `python benchmarks/run.py --report` from `results.jsonl`. Ratios are medians over pairs of processes "
        "that ran in turn, to the first way of the case; memory is what a process takes above its imports. "
        "`python benchmarks/run.py --list` says what else there is.",
        "",
        *table(figures),
    ]
    (HERE / "README.md").write_text("\n".join(text) + "\n")
    modes = [x for x in figures if x["case"] == "resnet18"]
    if modes:
        plot(modes, HERE / "modes.png")


def table(figures: Iterable[dict[str, Any]]) -> list[str]:
    """Return the lines of a table in Markdown."""
    head = ["network", "size", "way", "time ratio", "memory ratio", "pairs", "seconds", "GB"]
    head += ["floor, s"]
    rows = [[*head, "machine", "commit", "how"], ["---"] * (len(head) + 3)]
    for x in sorted(figures, key=lambda x: (x["case"], x["size"])):
        floor = x.get("floor_seconds")
        numbers = [x["seconds_ratio"], x["memory_ratio"], x["rounds"], f"{x['seconds']:.2f}"]
        numbers += [f"{x['above_base_bytes'] / 1e9:.2f}", f"{floor:.2f}" if floor else ""]
        size = " x ".join(map(str, x["size"][:2]))
        how = f"`{x.get('how', 'compare.py')}`"
        rows.append([x["case"], size, x["way"], *numbers, x["machine"], x["commit"], how])
    return ["| " + " | ".join(map(str, row)) + " |" for row in rows]


def plot(figures: Sequence[dict[str, Any]], path: Path) -> None:
    """Plot time over memory, both as ratios to the plain model, each way a point."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    sides = sorted({x["size"][0] for x in figures})
    figure, axes = pyplot.subplots(1, len(sides), figsize=(6 * len(sides), 4.8), squeeze=False)
    for side, axis in zip(sides, axes[0], strict=True):
        here = sorted(
            (x for x in figures if x["size"][0] == side), key=lambda x: -x["seconds_ratio"]
        )
        right = max(x["memory_ratio"] for x in here) * 1.3
        top = max(x["seconds_ratio"] for x in here) * 1.15
        labels: list[tuple[float, float]] = []
        points = [(x["memory_ratio"], x["seconds_ratio"]) for x in here]
        for x in here:
            streams = "stream" in x["way"] or x["way"].startswith("bfloat16")
            place = x["memory_ratio"], x["seconds_ratio"]
            color = "tab:red" if streams else "tab:gray"
            axis.plot(*place, "s" if x["way"].startswith(("torch", "jax")) else "o", color=color)
            labels.append(_free(place[0] + 0.03 * right, place[1], labels, points, right, top))
            line = {"arrowstyle": "-", "linewidth": 0.4}
            axis.annotate(x["way"], place, labels[-1], fontsize=8, va="center", arrowprops=line)
        axis.axhline(1, color="black", linewidth=0.5)
        axis.axvline(1, color="black", linewidth=0.5)
        axis.set(title=f"ResNet-18, {side} x {side}, one training step")
        axis.set(xlabel="memory, plain = 1", ylabel="time, plain = 1")
        axis.set(xlim=(0, right), ylim=(0, top))
        axis.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, dpi=130)


def _free(
    x: float,
    y: float,
    labels: Sequence[tuple[float, float]],
    points: Sequence[tuple[float, float]],
    right: float,
    top: float,
) -> tuple[float, float]:
    """Return the place at or below `(x, y)` where a label hides no point and no other label."""
    while any(abs(x - a) < 0.25 * right and abs(y - b) < 0.035 * top for a, b in labels) or any(
        0 < a - x < 0.2 * right and abs(y - b) < 0.025 * top for a, b in points
    ):
        y -= 0.01 * top
    return x, y


if __name__ == "__main__":
    main()
