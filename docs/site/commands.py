"""Pages of the commands: the flags of each, from the declarations that the parser is built of."""

from __future__ import annotations

import sys
from dataclasses import MISSING
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import tfbig_command

with tfbig_command.light_imports():
    from tfbig.cli.settings import help_text
    from tfbig.cli.settings.commands import COMMANDS
    from tfbig.cli.settings.flag import Flag, flags_of
    from tfbig.cli.settings.help_text import spelling
    from tfbig.cli.settings.request import EXIT_CODES
    from tfbig.tasks import TASKS


def meaning(flag: Flag) -> str:
    """Return what a flag is, as a cell of a table."""
    text = escape(help_text.meaning(flag), quote=False)
    text = text.replace("|", "\\|").replace("*", "\\*").replace("_", "\\_")
    is_required = flag.default is MISSING and not flag.positional
    return text + (". Required" if is_required else "")


def tables(settings: type, depth: int = 2) -> str:
    """Return a table of flags for each section of the help.

    Args:
        settings: Settings class.
        depth: Level of the headings.
    """
    sections: dict[str, list[Flag]] = {}
    for flag in flags_of(settings).values():
        sections.setdefault(flag.section, []).append(flag)
    parts = []
    for title, flags in sections.items():
        parts.append(
            f"{'#' * depth} {(title or 'flags').capitalize()}" if len(sections) > 1 else ""
        )
        rows = [f"| `{spelling(flag)}` | {meaning(flag)} |" for flag in flags]
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
    positional = [spelling(flag) for flag in flags_of(settings).values() if flag.positional]
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
