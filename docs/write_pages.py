"""Writes what documents have from elsewhere: figures of benchmarks, tables of them, a plan, and pages of plans.

    python docs/write_pages.py

A figure is a number before a comment with its name, `6.4<!--unet seconds-->`, and docs/figures.yaml says which line of
benchmarks/results.jsonl it is in. A block is what is between `<!-- generated: NAME -->` and `<!-- end -->`, and
`BLOCKS` has the function that writes it.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ["TF_ENABLE_ONEDNN_OPTS"] = "1"  # plans are those of processors with AVX-512
ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "docs")]

import figure_tables
import file_tables
import layer_tables
import plan_pages
import yaml
from write_papers import Line, figure, results

NAMES = ROOT / "docs/figures.yaml"
DOCUMENTS = sorted({*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")})
NUMBER = re.compile(r"[\d.,e+-]*\d<!--([^>]+)-->")
BLOCK = re.compile(r"(<!-- generated: ([\w -]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def plan_block(lines: list[Line]) -> str:
    """Return the plan of a small network that docs/how-it-works.md explains."""
    import keras
    from keras import layers

    import tfbig
    from tfbig.engine import machine_rates
    from tfbig.plan.plan import Rates

    x = image = keras.Input((None, None, 1), name="image")
    for number, filters in ((1, 4), (2, 16)):
        x = layers.Conv2D(filters, 3, padding="same", use_bias=False, name=f"conv{number}")(x)
        x = layers.ReLU(name=f"relu{number}")(layers.BatchNormalization(name=f"bn{number}")(x))
    budget = tfbig.Budget(device="8MB", host="338MB", disk="200MB")
    big = tfbig.stream(keras.Model(image, x), budget)
    big.compile("adam", "mse")
    rates = machine_rates.of
    machine_rates.of = lambda *_: (
        Rates()
    )  # those of two cores, so that every machine writes the same
    try:
        plan = big.plan((2, 1024, 1024, 1))
    finally:
        machine_rates.of = rates
    return f"```text\n{plan}\n```"


BLOCKS: dict[str, Callable[[list[Line]], str]] = {
    "plan": plan_block,
    **figure_tables.TABLES,
    **file_tables.TABLES,
    **layer_tables.TABLES,
}


def names() -> dict[str, str]:
    """Return the figures by name: `conditions|path|format`, as in `write_papers.figure`."""
    entries: dict[str, str] = yaml.safe_load(NAMES.read_text(encoding="utf-8"))
    return entries


def written(text: str, known: dict[str, str], lines: list[Line]) -> str:
    """Return a document with present figures and blocks.

    Args:
        text: The document.
        known: Figures by name.
        lines: Lines of benchmarks.

    Raises:
        ValueError: A figure or a block has no such name.
    """

    def number(match: re.Match[str]) -> str:
        if match[1] not in known:
            raise ValueError(f"{NAMES.name}: has no figure '{match[1]}'")
        parts = known[match[1]].split("|")
        return f"{figure(lines, *parts).removesuffix(' GB')}<!--{match[1]}-->"

    def block(match: re.Match[str]) -> str:
        if match[2] not in BLOCKS:
            raise ValueError(f"no block '{match[2]}'; expected one of {', '.join(BLOCKS)}")
        return f"{match[1]}{BLOCKS[match[2]](lines)}\n{match[3]}"

    return BLOCK.sub(block, NUMBER.sub(number, text))


def machines() -> dict[Path, str]:
    """Return the pages of plans, which are written as a whole."""
    return {ROOT / "docs" / place: text for place, text in plan_pages.pages().items()}


def main() -> None:
    """Write the documents."""
    known, lines = names(), results()
    texts = {path: written(path.read_text(encoding="utf-8"), known, lines) for path in DOCUMENTS}
    for path, text in {**texts, **machines()}.items():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
            print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
