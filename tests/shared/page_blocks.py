"""Code blocks of documents: found by their fences and the comments before them, and run in the order of the page.

A comment before a block says what is done with it:

    <!-- run -->          commands that are run
    <!-- shown: why -->   a block that is neither run nor parsed
    <!-- raises CODE -->  CODE raises an error with the message in the block; lines with "!" are commands
    <!-- prints CODE -->  CODE prints the block to standard error

`<!-- before CODE -->` runs CODE, where it is. Without a comment, Python runs, and commands, whose data is not here, are
read by the parser.
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from samples import ENVIRONMENT

import train
from tfbig.cli import paths
from tfbig.cli.main import main
from tfbig.cli.settings import request, training

COMMENT = re.compile(r"^<!-- (before|run|shown|raises|prints)\b:?\s*(.*?)\s*-->$", re.S | re.M)
FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.S | re.M)
COMMAND = re.compile(r"(?:^|[\s/])(tfbig|python (?:\S*/)?train\.py)(?=\s|$)")
SHELL = ("", "bash", "sh", "console")


@dataclass(frozen=True)
class Block:
    """A block of a page, or a comment with code.

    Args:
        line: Line of the page where it begins.
        kind: Word of the comment before it; "python", or "" for a block without one.
        language: Language of its fence; "" for a comment alone.
        text: What is in it.
        code: Code of the comment before it.
    """

    line: int
    kind: str
    language: str
    text: str
    code: str = ""


def blocks_of(text: str) -> list[Block]:
    """Return the blocks of a page in order."""
    fences = list(FENCE.finditer(text))
    comments = [
        match
        for match in COMMENT.finditer(text)
        if not any(f.start() < match.start() < f.end() for f in fences)
    ]
    before = {match.end() + 1: match for match in comments}
    found = []
    for fence in fences:
        comment = before.get(fence.start())
        kind = comment[1] if comment else "python" if fence[2] == "python" else ""
        body = "\n".join(line.removeprefix(fence[1]) for line in fence[3].splitlines())
        line = text.count("\n", 0, fence.start()) + 1
        found.append(Block(line, kind, fence[2], body, comment[2] if comment else ""))
    found += [
        Block(text.count("\n", 0, match.start()) + 1, "before", "", "", match[2])
        for match in comments
        if match[1] == "before"
    ]
    return sorted(found, key=lambda block: block.line)


def commands_of(text: str) -> list[str]:
    """Return the command lines of a block, joined over line ends, without comments."""
    lines = re.sub(r"\s*\\\n\s*", " ", text).splitlines()
    return [line for line in (re.sub(r"(^|\s+)#.*", "", each).strip() for each in lines) if line]


def has_commands(block: Block) -> bool:
    """Return whether a block has commands of tfbig."""
    return block.language in SHELL and any(map(COMMAND.search, commands_of(block.text)))


def words_of(command: str) -> tuple[str, list[str]] | None:
    """Return the program of a command line, `tfbig` or `train.py`, and its words; None for another program."""
    match = COMMAND.search(command)
    if match is None:
        return None
    return match[1].rpartition(" ")[2].rpartition("/")[2], shlex.split(command[match.end() :])


def parse(command: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parse a command line of tfbig as the program does; it exits if a flag is wrong. Paths need not exist."""
    found = words_of(command.replace("$SLURM_ARRAY_TASK_ID", "0"))
    if found is None:
        return
    program, words = found
    words = [word for word in words if word != "..."]
    if "FLAGS" in words:
        words[words.index("FLAGS")] = "--lr=1e-3"
    monkeypatch.setattr(paths, "check", lambda *_: None)
    if program == "train.py":
        training.parse(words)
        return
    if words[0] == "evaluate":  # it reads the settings of the run
        run = folder / words[1]
        run.mkdir(parents=True, exist_ok=True)
        (run / "config.yaml").write_text("task: mil\nbags: slides\n")
    request.parse(words)


def run(command: str) -> tuple[int, str]:
    """Run a command line in this process if it is one of tfbig; return the exit code and the standard error."""
    found = words_of(command) if command.startswith(("tfbig ", "python ")) else None
    if found is None:
        process = subprocess.run(
            ["bash", "-c", command], capture_output=True, text=True, env=ENVIRONMENT, check=False
        )
        return process.returncode, process.stderr
    program, words = found
    printed = io.StringIO()
    with contextlib.redirect_stderr(printed), contextlib.redirect_stdout(io.StringIO()):
        try:
            code = main(words) if program == "tfbig" else train.main(words)
        except SystemExit as ended:
            code = int(ended.code or 0)
    return code, printed.getvalue()


def execute(code: str, names: dict[str, Any], where: str) -> str:
    """Run code and commands (lines that begin with "!"); return what the commands print to standard error."""
    printed = ""
    for part in _parts(code):
        if part.startswith("!"):
            printed += run(part[1:])[1]
        else:
            exec(compile(part, where, "exec"), names)
    return printed


def _parts(code: str) -> Iterator[str]:
    lines: list[str] = []
    for line in code.splitlines():
        if line.startswith("!"):
            yield "\n".join(lines)
            yield line
            lines = []
        else:
            lines.append(line)
    yield "\n".join(lines)


def matches(pattern: str, text: str) -> bool:
    """Return whether a text is as in a document, where `...` stands for anything; spaces and line ends are alike."""
    parts = [re.escape(" ".join(part.split())) for part in pattern.split("...")]
    expected = r"\s*.*?\s*".join(parts)
    return re.fullmatch(expected, " ".join(text.split()), re.S) is not None


def run_page(path: Path, names: dict[str, Any]) -> None:
    """Run all blocks of a page that are to be run, in one namespace."""
    for block in blocks_of(path.read_text(encoding="utf-8")):
        where = f"{path.name}:{block.line}"
        if block.kind == "before":
            execute(block.code, names, where)
        elif block.kind == "python":
            execute(block.text, names, where)
        elif block.kind == "run":
            for command in commands_of(block.text):
                code, printed = run(command)
                assert code == 0, f"{where}: {command}: {printed}"
        elif block.kind == "prints":
            lines = execute(block.code, names, where)
            assert matches(f"...{block.text}...", lines), f"{where}: {lines}"
        elif block.kind == "raises":
            with pytest.raises(Exception) as raised:  # any error; its message is compared
                execute(block.code, names, where)
            assert matches(block.text, str(raised.value)), f"{where}: {raised.value}"
