"""Links of pages to files outside of docs/, which the site has as copies, in the same folders below `repository/`."""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
COPIES = "repository"
"""Folder of the site with the files that are linked and not in docs/."""
HOME = "README.md"
"""File of the checkout that is the first page of the site."""

FENCE = re.compile(r"^ *(```|~~~)")
LINK = re.compile(r"(\]\(|<img [^>]*src=\")([^)\"#\s]+)")


def place(file: str) -> str:
    """Return where the site has a file: `docs/map.md -> map.md`, `train.py -> repository/train.py`.

    A notebook is a page: `docs/notebooks/10_volume.py -> notebooks/10_volume.md`.

    Args:
        file: Path in the checkout.
    """
    if file == HOME:
        return "index.md"
    if file.startswith("docs/notebooks/"):
        file = file.removesuffix(".py").removesuffix(".md") + ".md"
    return file.removeprefix("docs/") if file.startswith("docs/") else f"{COPIES}/{file}"


def origin(page: str) -> str:
    """Return the path in the checkout of a page of the site, the inverse of `place`."""
    if page == "index.md":
        return HOME
    return page.removeprefix(f"{COPIES}/") if page.startswith(f"{COPIES}/") else f"docs/{page}"


def target(file: str, link: str) -> str | None:
    """Return the path in the checkout that a link leads to; None if it is not in the checkout.

    Args:
        file: Path in the checkout of the file that has the link.
        link: The link, without its anchor.
    """
    if "://" in link or link.startswith("mailto:"):
        return None
    path = posixpath.normpath(posixpath.join(posixpath.dirname(file), link))
    if (ROOT / path).is_dir():
        path = f"{path}/README.md"
    return path if (ROOT / path).is_file() else None


def rewritten(markdown: str, change: Callable[[str], str]) -> str:
    """Return a text with changed links; code blocks are left alone.

    Args:
        markdown: The text.
        change: Function from a link, without its anchor, to another.
    """
    lines, fence = [], ""
    for line in markdown.splitlines(keepends=True):
        mark = FENCE.match(line)
        if mark and fence in ("", mark[1]):
            fence = "" if fence else mark[1]
        if not fence:
            line = LINK.sub(lambda match: match[1] + change(match[2]), line)
        lines.append(line)
    return "".join(lines)


def on_site(markdown: str, page: str) -> str:
    """Return the text of a page with links to the places where the site has the files.

    Args:
        markdown: Text of the file in the checkout.
        page: Place of the page on the site.
    """
    file = origin(page)

    def change(link: str) -> str:
        path = target(file, link)
        if path is None:
            return link
        return os.path.relpath(place(path), posixpath.dirname(page) or ".")

    return rewritten(markdown, change)


def linked(file: str) -> Iterator[str]:
    """Yield the files of the checkout that a Markdown file links to."""
    found: list[str] = []
    rewritten((ROOT / file).read_text(encoding="utf-8"), lambda link: found.append(link) or link)
    yield from filter(None, (target(file, link) for link in found))


def outside(pages: list[str]) -> set[str]:
    """Return the files outside of docs/ that pages link to, directly or by other such files.

    Args:
        pages: Paths in the checkout.
    """
    known: set[str] = set()
    waiting = [HOME, *pages]
    while waiting:
        file = waiting.pop()
        for path in linked(file):
            if not path.startswith("docs/") and path not in known:
                known.add(path)
                waiting += [path] if path.endswith(".md") else []
    return known | {HOME}
