"""Table of the recipes: what each file says about itself, and its main settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
SHOWN = ("task", "encoder", "model", "bags", "images", "mode", "epochs", "batch_size", "lr")
"""Settings that the table has, where a recipe sets them."""


def about(text: str) -> str:
    """Return the first paragraph of comments at the top of a recipe."""
    lines = []
    for line in text.splitlines():
        if not line.startswith("#") or not line.strip("# "):
            break
        lines.append(line.lstrip("# "))
    return " ".join(lines)


def row(path: Path) -> str:
    """Return the row of a recipe."""
    text = path.read_text(encoding="utf-8")
    values: dict[str, Any] = yaml.safe_load(text)
    shown = ", ".join(f"`{name}: {values[name]}`" for name in SHOWN if name in values)
    link = f"../repository/recipes/{path.name}"
    return f"| [`{path.stem}`]({link}) | {about(text).replace('|', '/')} | {shown} |"


def pages() -> dict[str, str]:
    """Return the page of the table by its place."""
    paths = sorted((ROOT / "recipes").glob("*.yaml"))
    head = (
        "# Table of the recipes\n\nGenerated from the files; `tfbig train --config recipes/NAME.yaml` uses one. "
        "[Recipes](../repository/recipes/README.md) says which data they need."
    )
    table = ["| recipe | | settings |", "|---|---|---|", *(row(path) for path in paths)]
    return {"reference/recipes.md": f"{head}\n\n" + "\n".join(table) + "\n"}
