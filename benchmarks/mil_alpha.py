"""Time of a training step by the share of a bag at once, compared with whole bags (the third figure of ABMIL-ACC).

    python benchmarks/mil_alpha.py [--instances 500 --side 84 --rounds 3]

For 3, 25, 50 and 100 % of a bag, `mil_step.py` runs accumulated training and plain Keras on the whole bag in turn, in
its own process: ResNet-18 without BatchNormalization, and ABMIL. Prints its JSON lines, and writes `mil_alpha.png`:
medians of the ratios of seconds and of processor seconds, and all ratios.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[0] = str(HERE.parent)

from benchmarks import report

ALPHAS = (3, 25, 50, 100)
RATIOS = {"ratio": "seconds", "processor_ratio": "processor seconds"}


def measure(arguments, alpha):
    """Return the figures of `mil_step.py` for a share in percent."""
    at_once = max(arguments.instances * alpha // 100, 1)
    words = ["--instances", arguments.instances, "--side", arguments.side, "--at-once", at_once]
    script = os.path.join(HERE, "mil_step.py")
    words += ["--norm", "none", "--rounds", arguments.rounds]
    return report.in_own_process([script, *words]) | {"alpha": alpha}


def draw(lines, path):
    """Plot the ratios over the share."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    for color, (key, label) in enumerate(RATIOS.items()):
        places = [line["alpha"] for line in lines]
        axes.plot(places, [line[key] for line in lines], f"C{color}o-", label=f"{label}, median")
        for line in lines:
            ratios = line[f"{key}s"]
            axes.plot([line["alpha"]] * len(ratios), ratios, f"C{color}.", alpha=0.5)
    axes.axhline(1, color="grey", lw=0.8, ls=":")
    axes.set(
        xlabel="share of a bag at once, %", ylabel="time relative to whole bags in plain Keras"
    )
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=110)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--instances", type=int, default=500)
    parser.add_argument("--side", type=int, default=84)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", default=str(HERE / "mil_alpha.png"))
    arguments = parser.parse_args()
    lines = []
    for alpha in ALPHAS:
        lines.append(measure(arguments, alpha) | {"case": "mil_alpha"})
        print(json.dumps(lines[-1]), flush=True)
    draw(lines, arguments.out)


if __name__ == "__main__":
    main()
