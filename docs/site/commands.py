"""Pages of the commands: the flags of each, from the declarations that the parser is built of."""

from __future__ import annotations

import re
import sys
from dataclasses import MISSING
from html import escape
from itertools import groupby
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import tfbig_command

with tfbig_command.light_imports():
    from tfbig.cli.settings.commands import COMMANDS
    from tfbig.cli.settings.flag import Flag, fields_of, sections_of
    from tfbig.cli.settings.request import EXIT_CODES
    from tfbig.tasks import TASKS


def spelling(name: str, flag: Flag, default: Any) -> str:
    """Return a flag as it is written: `--crop HxW`, `--epochs N`, `FOLDER`."""
    options = flag.options
    chosen = options.get("choices")
    value = options.get("metavar") or ("" if chosen else name.upper())
    dashes = f"--{name.replace('_', '-')}"
    if flag.positional:
        return value if isinstance(value, str) else " ".join(value)
    if default is False and not options:
        return dashes
    if isinstance(value, tuple):
        return f"{dashes} {' '.join(value)}"
    count = options.get("nargs")
    if isinstance(count, int):
        value = " ".join([value] * count)
    return f"{dashes} {value}{' ...' if count in ('+', '*') else ''}".rstrip()


def meaning(flag: Flag, default: Any) -> str:
    """Return the help text of a flag, and its values if there are only some."""
    values = {**flag.options, "default": default}
    text = escape(re.sub(r"%\((\w+)\)s", lambda m: str(values[m[1]]), flag.help), quote=False)
    text = text.replace("%%", "%").replace("|", "\\|").replace("*", "\\*").replace("_", "\\_")
    chosen = flag.options.get("choices")
    if chosen and not flag.positional:
        text += f". Values: {', '.join(f'`{value}`' for value in chosen)}"
    return text + (". Required" if default is MISSING and not flag.positional else "")


def tables(settings: type, depth: int = 2) -> str:
    """Return a table of flags for each section of the help.

    Args:
        settings: Settings class.
        depth: Level of the headings.
    """
    sections = sections_of(settings)
    fields = fields_of(settings)
    titles = list(dict.fromkeys(sections[name] for name in fields))
    ordered = sorted(fields, key=lambda name: titles.index(sections[name]))
    parts = []
    for title, names in groupby(ordered, key=sections.__getitem__):
        parts.append(f"{'#' * depth} {(title or 'flags').capitalize()}" if len(titles) > 1 else "")
        rows = []
        for name in names:
            flag, default = fields[name].metadata["flag"], fields[name].default
            rows.append(f"| `{spelling(name, flag, default)}` | {meaning(flag, default)} |")
        parts.append("\n".join(["| flag | meaning |", "|---|---|", *rows]))
    return "\n\n".join(filter(None, parts))


def page(command: str, title: str, about: str, settings: type, example: str = "") -> str:
    """Return the page of a command.

    Args:
        command: The command as it is typed.
        title: Heading.
        about: What it does.
        settings: Its settings class.
        example: Flags of an example, if there is one.
    """
    positional = [
        spelling(name, field.metadata["flag"], field.default)
        for name, field in fields_of(settings).items()
        if field.metadata["flag"].positional
    ]
    shown = f"```text\n{' '.join([command, *positional, 'FLAGS'])}\n```"
    parts = [f"# {title}", about, shown, tables(settings), EXIT_CODES]
    if example:
        parts.insert(3, f"Example:\n\n```text\n{command.partition(' --')[0]} {example}\n```")
    return "\n\n".join(parts) + "\n"


def pages() -> dict[str, str]:
    """Return the text of each page of the commands by its place."""
    texts, rows = {}, []
    for name, command in COMMANDS.items():
        if command.settings is not None:
            texts[f"commands/{name}.md"] = page(
                f"tfbig {name}", f"tfbig {name}", command.about, command.settings
            )
        elif name == "train":
            for task, declared in TASKS.items():
                settings = declared.settings_class()
                call = f"tfbig train --task {task}"
                about = (settings.__doc__ or "").partition("\n")[0]
                texts[f"commands/train-{task}.md"] = page(
                    call, call, about, settings, settings.EXAMPLE
                )
        else:
            texts[f"commands/{name}.md"] = evaluate_page(name, command.about)
        links = [place for place in texts if place.startswith(f"commands/{name}")]
        shown = ", ".join(f"[{place[9:-3]}]({place[9:]})" for place in links)
        rows.append(f"| `tfbig {name}` | {command.about} | {shown} |")
    head = "# Commands\n\nThese pages are generated from the parser; `tfbig COMMAND --help` prints the same."
    table = "\n".join(["| command | | flags |", "|---|---|---|", *rows])
    return {"commands/index.md": f"{head}\n\n{table}\n\n{EXIT_CODES}\n", **texts}


def evaluate_page(name: str, about: str) -> str:
    """Return the page of `tfbig evaluate`, whose flags are those of the run that it evaluates."""
    links = ", ".join(f"[{task}](train-{task}.md)" for task in TASKS)
    shown = f"```text\ntfbig {name} RUN FLAGS\n```"
    flags = f"`RUN` is a run folder, or a folder of `--seeds` or `--folds`. Its flags are those of its task: {links}."
    return "\n\n".join([f"# tfbig {name}", about, shown, flags, EXIT_CODES]) + "\n"
