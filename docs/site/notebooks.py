"""Pages of the notebooks: with their output where docs/run_notebooks.py has written it, else without."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import jupytext
import links

SOURCES = links.DOCS / "notebooks"
RESULTS = links.ROOT / "build" / "notebooks"
UNFINISHED = """\
!!! note
    This page was built without the output of the notebook. `python docs/run_notebooks.py` runs it.
"""

BADGE = re.compile(r"!\[([^]]*)\]\(https?://[^)]*\)")
"""A picture that a browser would load from elsewhere."""


def pages() -> dict[str, str]:
    """Return the page of each notebook by its place."""
    return {f"notebooks/{path.stem}.md": page(path) for path in sources()}


def sources() -> list[Path]:
    """Return the notebooks in order."""
    return sorted(SOURCES.glob("[0-9][0-9]_*.py"))


def page(path: Path) -> str:
    """Return the text of a page; results older than the notebook are not used, and badges become words."""
    result = RESULTS / f"{path.stem}.md"
    if result.exists() and result.stat().st_mtime >= path.stat().st_mtime:
        return BADGE.sub(r"\1", result.read_text(encoding="utf-8"))
    title, *cells = jupytext.read(path).cells
    parts = [title.source, UNFINISHED]
    for cell in cells:
        code = cell.cell_type == "code"
        parts.append(f"```python\n{cell.source}\n```" if code else cell.source)
    return "\n\n".join(parts) + "\n"


def pictures() -> Iterator[tuple[str, Path]]:
    """Yield the place and the file of each picture of a result."""
    for path in sources():
        for picture in sorted((RESULTS / f"{path.stem}_files").glob("*")):
            yield f"notebooks/{picture.parent.name}/{picture.name}", picture
