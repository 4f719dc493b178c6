"""Tables of documents, made from the lines of benchmarks/results.jsonl, for write_pages.py."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import scale_table

from benchmarks.networks import APPLICATIONS

Line = dict[str, Any]
SLIDES = {
    "skin": "CMU-1-Small-Region",
    "oesophagus": "esophagus_eosinophilic",
    "stomach": "gastritis_lymphocytic",
    "pancreas": "pancreas_pdac_1",
    "tumour": "tcga-cr-7395-01a-01-ts1_jp2k",
}
MODES = {
    "plain Keras, `--mode device`": "plain",
    '`keras.RematScope("activations")`': "remat",
    "plain Keras, `--mode unified` (on a CPU the same)": "unified",
    "**streamed**, float32": "streamed",
    '**streamed**, `Budget(host="1.1GB")` and `"3.8GB"`': "streamed-small",
    '**streamed**, `store="bfloat16"`': "bfloat16-stores",
    "plain Keras, mixed_bfloat16": "plain-bfloat16",
    "**streamed**, mixed_bfloat16": "bfloat16",
    "PyTorch 2.15": "torch",
    "PyTorch, every block checkpointed": "torch-checkpoint",
    "PyTorch, `save_on_cpu`": "torch-save_on_cpu",
}
PEERS = {
    "plain Keras": "plain",
    "**streamed**, float32": "streamed",
    "PyTorch 2.14, channels last": "torch",
    "PyTorch, every block checkpointed": "torch-checkpoint",
    "PyTorch, `save_on_cpu`": "torch-save_on_cpu",
    "JAX 0.10": "jax",
    "JAX, every block checkpointed": "jax-checkpoint",
}
SHORT_MODES = {
    "streamed": "streamed",
    "streamed, `Budget(host=)` of 1.1 GB at 2048, 3.8 GB at 4096": "streamed-small",
    "plain Keras, mixed_bfloat16": "plain-bfloat16",
    "streamed, mixed_bfloat16": "bfloat16",
    "PyTorch 2.15, gradient checkpointing of every block": "torch-checkpoint",
}
PLANNED = {
    "ResNet-18": "resnet18",
    "ResNet-50": "resnet50",
    "ResNet-18 and ABMIL": "mil",
}
"""Names of networks in the table of projected memory; others are as in the lines."""
WAYS = {"plain": "plain Keras", "small": "`tfbig.stream`", "streamed": "streamed"}
LABELS = {
    "digits": "a 9 among 64 digits",
    "local": "a ring among the discs on tissue",
    "context": "nuclei that follow circles around glands",
}
"""Tasks of the lines "end to end", at commit 95b2548."""
LEARNING = {
    "frozen features": "frozen",
    "a quarter of the tiles, end to end": "sampling",
    "all tiles, end to end": "tiles",
    "the whole image, streamed": "whole",
}
SCALED = {"resnet18": "ResNet-18", "resnet50": "ResNet-50"}
"""Networks of recipes/experiments/scaling.py."""
KEPT = {"plain Keras": "keras", "multiple instance learning": "mil", "PatchGD": "patchgd"}


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table of Markdown."""
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows))


def last(lines: list[Line], **wanted: Any) -> Line | None:
    """Return the last line with these values; None if there is none."""
    fitting = [line for line in lines if all(line.get(k) == v for k, v in wanted.items())]
    return fitting[-1] if fitting else None


def _mode(lines: list[Line], way: str, side: int) -> list[str]:
    line = last(lines, case="resnet18", way=way, size=[side, side, 3])
    if line is None:
        return [""] * 4
    seconds, memory = f"{line['seconds']:.2f} s", f"{line['above_base_bytes'] / 1e9:.2f} GB"
    return [seconds, f"{line['seconds_ratio']:.2f}", memory, f"{line['memory_ratio']:.2f}"]


def modes(lines: list[Line]) -> str:
    """Return the time and memory of one training step in all modes."""
    of_size = ["ratio", "memory", "ratio"]
    head = ["mode", "2048 x 2048", *of_size, "4096 x 4096", *of_size]
    sides = (2048, 4096)
    rows = (
        [name, *(cell for side in sides for cell in _mode(lines, way, side))]
        for name, way in MODES.items()
    )
    return table(head, rows)


def peers(lines: list[Line]) -> str:
    """Return the time and memory of one training step in several frameworks."""
    rows = ([name, *_mode(lines, way, 1536)] for name, way in PEERS.items())
    return table(["way", "1536 x 1536", "ratio", "memory", "ratio"], rows)


def networks(lines: list[Line]) -> str:
    """Return the time and memory of one training step of networks of `keras.applications`, streamed and plain."""
    found = {
        (line["case"], line["way"]): line
        for line in lines
        if line["case"] in APPLICATIONS and line["size"] == [1536, 1536, 3]
    }
    rows = []
    for network, way in found:
        line = found[network, way]
        name = "plain Keras" if way == "plain" else "streamed"
        name += f', `Budget(host="{line["host"]}")`' if "host" in line else ""
        memory = f"{line['above_base_bytes'] / 1e9:.2f} GB"
        ratios = f"{line['seconds_ratio']:.2f}", f"{line['memory_ratio']:.2f}"
        rows.append([network, name, f"{line['seconds']:.2f} s", ratios[0], memory, ratios[1]])
    return table(["network", "way", "1536 x 1536", "ratio", "memory", "ratio"], rows)


def short_modes(lines: list[Line]) -> str:
    """Return the ratios to plain Keras that the README has."""
    rows = []
    plain = ["plain Keras"]
    for side in (2048, 4096):
        line = last(lines, case="resnet18", way="plain", size=[side, side, 3]) or {}
        plain += [
            f"1.00 ({line['seconds']:.1f} s)",
            f"1.00 ({line['above_base_bytes'] / 1e9:.1f} GB)",
        ]
    for name, way in SHORT_MODES.items():
        cells = [_mode(lines, way, side)[1::2] for side in (2048, 4096)]
        rows.append([name, *(cells[0]), *(cells[1] if cells[1][0] else ["not measured", ""])])
    return table(
        ["mode", "time, 2048 x 2048", "memory", "time, 4096 x 4096", "memory"], [plain, *rows]
    )


def _first_steps(side: int, names: dict[str, str]) -> Callable[[list[Line]], str]:
    columns = ("first_prediction", "first_step", "step", "first_step_of_another_size")

    def of(lines: list[Line]) -> str:
        latest = {
            (line["network"], line["way"]): line
            for line in lines
            if line["case"].endswith(" first step")
            and line["size"] == [side, side, 3]
            and line["way"] in names
        }
        networks = [network for network, _ in latest]
        head = ["network", "way", "first prediction", "first step", "further steps"]
        rows = (
            [line["network"], names[line["way"]], *(f"{line[column]:g}" for column in columns)]
            for line in sorted(latest.values(), key=lambda line: networks.index(line["network"]))
        )
        return table([*head, "first step of another size"], rows)

    return of


def background(lines: list[Line]) -> str:
    """Return time and memory against the share of foreground."""
    latest = {
        (line["network"], line["tissue"]): line
        for line in lines
        if "background" in line["case"] and "network" in line and "tissue" in line
    }
    by_share = sorted(latest, key=lambda key: (key[0], key[1]))
    rows = []
    for key in by_share:
        line = latest[key]
        if line.get("store") != "float32":
            continue  # of an earlier version of the benchmark
        memory = line["peak_bytes"] / line["everything_peak_bytes"]
        ratios = line["active"], line["time_ratio"], line["processor_ratio"], memory
        rows.append(
            [
                key[0].replace("resnet", "ResNet-"),
                f"{key[1]:g}",
                *(f"{ratio:.2f}" for ratio in ratios),
            ]
        )
    head = ["network", "share of foreground", "share of the work", "time", "processor time"]
    return table([*head, "memory"], rows)


def tissue(lines: list[Line]) -> str:
    """Return the Dice coefficients of three methods: by colour, by Otsu's threshold, by grey value."""
    found = [line for line in lines if line["case"] == "tissue"]
    rows = []
    for change in dict.fromkeys(line["change"] for line in found):
        cells = [last(found, slide=slide, change=change) or {} for slide in SLIDES.values()]
        methods = ("colour", "otsu", "grey")
        rows.append([change, *(" / ".join(f"{c[m]:.2f}" for m in methods) for c in cells)])
    return table(["slide", *SLIDES], rows)


def planned(lines: list[Line]) -> str:
    """Return measured memory divided by that of the plan."""
    found = {
        (line["way"].split()[0], tuple(line["size"]), line["way"].split()[1]): line
        for line in lines
        if line["case"] == "plan_holds" and line["way"].endswith(" training")
    }
    titles = {short: name for name, short in PLANNED.items()}
    rows = []
    for network, size in dict.fromkeys(key[:2] for key in found):
        images = (
            f"{size[0]} tiles of {size[1]} x {size[1]}"
            if network == "mil"
            else " x ".join(map(str, size))
        )
        ratios = [
            f"{found[network, size, limit]['ratio']:.2f}" for limit in ("large", "medium", "least")
        ]
        rows.append([titles.get(network, network), images, *ratios])
    return table(["network", "images", "large", "medium", "least"], rows)


def planned_plain(lines: list[Line]) -> str:
    """Return measured memory of steps in plain Keras, divided by that of the plan."""
    found = {
        (*line["way"].split()[::2], *line["size"]): f"{line['ratio']:.2f}"
        for line in lines
        if line["case"] == "plan_holds plain"
    }
    titles = {short: name for name, short in PLANNED.items()}
    rows = [
        [
            titles.get(network, network),
            f"{height} x {width}",
            *(found.get((network, kind, height, width), "-") for kind in ("training", "inference")),
        ]
        for network, height, width in dict.fromkeys((n, *size) for n, _, *size in found)
    ]
    return table(["network", "images", "training", "inference"], rows)


def end_to_end(lines: list[Line]) -> str:
    """Return the AUC of four ways to learn labels of images, and the steps that each took."""
    rows = []
    for task, name in LABELS.items():
        line = last(lines, case=f"end to end: {task}") or {}
        scores = (line[way] for way in LEARNING.values())
        cells = (f"{x['auc']:.2f} +- {x['deviation']:.2f} ({x['steps']})" for x in scores)
        rows.append([name, *cells])
    return table(["label", *LEARNING], rows)


def scaling(lines: list[Line]) -> str:
    """Return how the time of a step grows with the area, of lines whose fit is of the means."""
    found = {line["case"]: line for line in lines if line.get("fit_of") == "mean"}
    rows = []
    for case, line in found.items():
        _, network, stages = case.split()
        rows.append(
            [
                SCALED[network],
                "plain Keras" if stages == "plain" else f"{stages} of 4",
                f"{line['seconds'][0]:.2f} s",
                f"{line['seconds'][-1]:.2f} s",
                f"{line['seconds'][-1] / line['seconds'][0]:.2f}",
                f"{line['b']:.2f} +- {line['b_error']:.2f}",
                f"{line['doubling']:.2f}",
            ]
        )
    head = ["network", "streamed stages", "1024 x 1024", "2560 x 2560", "growth"]
    return table([*head, "exponent", "twice the area"], rows)


def kept(lines: list[Line]) -> str:
    """Return what deleted models keep."""
    rows = []
    for name, case in {"plain Keras": "keras", "streamed": "streamed", **KEPT}.items():
        line = last(lines, case=f"models_let_go {case}") or {}
        rows.append([name, f"{line['kept_bytes'] / 1e6:.1f} MB", f"{line['kept_objects']:.0f}"])
    return table(["model", "bytes a round", "Python objects a round"], rows)


def encoder_parity(lines: list[Line]) -> str:
    """Return how far features of encoders of pathology are from those of torch."""
    found = {line["encoder"]: line for line in lines if line["case"] == "encoder parity"}
    rows = [
        [
            f"`{name}`",
            str(line["blocks"]),
            f"{line['parameters'] / 1e6:.1f} million",
            str(line["features"]),
            f"{line['difference']:.1e}",
        ]
        for name, line in found.items()
    ]
    return table(["encoder", "blocks", "parameters", "features", "largest difference"], rows)


def simulated(lines: list[Line]) -> str:
    """Return what docs/scale_table.py simulates; it needs no line."""
    return scale_table.table(scale_table.Cluster())


TABLES: dict[str, Callable[[list[Line]], str]] = {
    "modes": modes,
    "peers": peers,
    "short modes": short_modes,
    "networks": networks,
    "scaling": scaling,
    "first steps": _first_steps(512, WAYS),
    "first steps at 1536": _first_steps(1536, WAYS),
    "background": background,
    "tissue": tissue,
    "plan holds": planned,
    "plain plan holds": planned_plain,
    "kept": kept,
    "end to end": end_to_end,
    "encoder parity": encoder_parity,
    "scale": simulated,
}
"""Tables by the name in `<!-- generated: NAME -->`."""
