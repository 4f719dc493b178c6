"""Hooks of the build of the site: generated pages, copies of linked files, links between them, and the navigation."""

from __future__ import annotations

import re
from typing import Any

import commands
import links
import notebooks
import recipe_table
import reference
from mkdocs.structure.files import File, Files

DOCS = links.DOCS
FIRST = ("index.md", "README.md")


def on_config(config: Any) -> Any:
    """Replace folders in the navigation, written `guides/`, by their pages."""
    generated = _generated()

    def expanded(entry: Any) -> Any:
        if isinstance(entry, str) and entry.endswith("/"):
            written = sorted(
                path.relative_to(DOCS).as_posix() for path in (DOCS / entry).glob("*.md")
            )
            made = [place for place in generated if place.startswith(entry)]
            pages = [page for page in (*written, *made) if page not in _named(config["nav"])]
            return sorted(pages, key=lambda page: page.rpartition("/")[2] not in FIRST)
        if isinstance(entry, dict):
            return {title: expanded(part) for title, part in entry.items()}
        if isinstance(entry, list):
            parts = [expanded(part) for part in entry]
            return [p for part in parts for p in (part if isinstance(part, list) else [part])]
        return entry

    config["nav"] = expanded(config["nav"])
    return config


def _named(entry: Any) -> set[str]:
    """Return all pages that a navigation names."""
    if isinstance(entry, dict):
        return set().union(*map(_named, entry.values()))
    return set().union(*map(_named, entry)) if isinstance(entry, list) else {entry}


def _generated() -> dict[str, str]:
    return {**reference.pages(), **commands.pages(), **recipe_table.pages(), **notebooks.pages()}


def on_files(files: Files, config: Any) -> Files:
    """Add generated pages, and copies of files outside of docs/ that pages link to."""
    for place, text in _generated().items():
        files.append(File.generated(config, place, content=text))
    for place, picture in notebooks.pictures():
        files.append(File.generated(config, place, abs_src_path=str(picture)))
    pages = [links.origin(file.src_uri) for file in files if file.src_uri.endswith(".md")]
    written = [page for page in pages if (links.ROOT / page).exists()]
    recipe_files = {f"recipes/{path.name}" for path in (links.ROOT / "recipes").glob("*.yaml")}
    for path in sorted(links.outside(written) | recipe_files):
        place = links.place(path)
        files.append(File.generated(config, place, abs_src_path=str(links.ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Make links lead to where the site has the files."""
    return links.on_site(markdown, page.file.src_uri)


def on_page_content(html: str, page: Any, config: Any, files: Files) -> str:
    """Make wide tables scroll on narrow screens, which pages without scripts need too."""
    return re.sub(r"(<table>.*?</table>)", r'<div class="table">\1</div>', html, flags=re.S)
