"""Errors of the command line in one line: which flag is wrong, what was expected, and which command lists the flags."""

from __future__ import annotations

import argparse
import difflib
import functools
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

Arguments = Mapping[str, Mapping[str, Any]]
"""Options of `add_argument` by what the help calls the argument: the name of a flag, or of a value without one."""
NUMBERS = {"int": "a whole number", "float": "a number"}
STARTS = ("tfbig", "tfbig_command", "main")
"""Stems of the files that start `tfbig`."""


def alike(name: str, names: Iterable[str], number: int = 1) -> list[str]:
    """Return the names that are most like a wrong one, the best first: one that differs only in case, or some others.

    Args:
        name: The wrong name.
        names: The names that exist.
        number: Most names to return.
    """
    lower = {each.lower(): each for each in names}
    if same := lower.get(name.lower()):
        return [same]
    return [lower[match] for match in difflib.get_close_matches(name.lower(), lower, number)]


def program() -> str:
    """Return the name of the program and its command, such as `tfbig train`, as the process was started."""
    file = Path(sys.argv[0] if sys.argv else "")
    if file.stem not in STARTS:
        return file.name
    words = [word for word in sys.argv[1:2] if re.fullmatch("[a-z]+", word)]
    return " ".join(["tfbig", *words])


def exit_with(prog: str, message: str) -> NoReturn:
    """Print a message about wrong flags in one line, and exit with 2.

    Args:
        prog: Name of the program and its command.
        message: The message.
    """
    print(f"{prog}: {message}", file=sys.stderr)
    raise SystemExit(2)


def shorten(parser: argparse.ArgumentParser, arguments: Arguments) -> None:
    """Make a parser report errors in one line, without its usage.

    Args:
        parser: The parser. One without `--help`, which reads a few flags of a whole command line, reports its errors as
            those of the program.
        arguments: Its arguments.
    """
    report = functools.partial(_report, parser, arguments)
    parser.error = report  # type: ignore[method-assign]


def unknown(
    parser: argparse.ArgumentParser, tokens: Sequence[str], known: Sequence[str]
) -> NoReturn:
    """Exit because there are arguments that a parser does not know, and name the flags that are most like them.

    Args:
        parser: The parser.
        tokens: The arguments.
        known: Names of the flags.
    """
    names = [token.partition("=")[0] for token in tokens if token.startswith("--")]
    meant = [match for name in names for match in alike(name, known, 2)]
    hint = f" Did you mean {' or '.join(dict.fromkeys(meant))}?" if meant else ""
    exit_with(
        parser.prog,
        f"unrecognized arguments: {' '.join(tokens)}.{hint} {_help(parser, parser.prog)}",
    )


def in_words(message: str, arguments: Arguments) -> str:
    """Return an error of argparse that names the flag first, and says what was expected.

    Args:
        message: Message of argparse.
        arguments: Arguments of the parser.
    """
    required = "the following arguments are required: "
    if message.startswith(required):
        names = message.removeprefix(required).split(", ")
        return " ".join(_missing(name, arguments.get(name, {})) for name in names)
    match = re.fullmatch(r"argument (\S+): (.*)", message, re.DOTALL)
    if match is None:
        return f"{message.rstrip('.')}."
    name, problem = match.groups()
    options = arguments.get(name, {})
    for pattern, reworded in (
        (r"expected (.*) arguments?", _count),
        (r"invalid choice: (.*?) \(.*", _choice),
        (r"invalid (\w+) value: (.*)", _value),
        (r"ignored explicit argument (.*)", _switch),
    ):
        if found := re.fullmatch(pattern, problem, re.DOTALL):
            return reworded(name, options, *found.groups())
    return f"{name}: {problem.rstrip('.')}."


def _report(parser: argparse.ArgumentParser, arguments: Arguments, message: str) -> NoReturn:
    """Exit with an error of a parser."""
    prog = parser.prog if parser.add_help else program()
    exit_with(prog, f"{in_words(message, arguments)} {_help(parser, prog)}")


def _help(parser: argparse.ArgumentParser, prog: str) -> str:
    """Return which command lists the flags, those of the task if the parser is that of a task."""
    task = parser.get_default("task") if parser.add_help else None
    flags = f"--task {task} --help" if task else "--help"
    return f"`{prog} {flags}` lists all flags."


def _missing(name: str, options: Mapping[str, Any]) -> str:
    """Return that an argument is missing, and the first part of its help."""
    what = re.split(r"; | \(|\. (?=[A-Z])", str(options.get("help", "")))[0]
    return f"{name} is missing: {what}." if what else f"{name} is missing."


def _count(name: str, options: Mapping[str, Any], number: str) -> str:
    """Return how many values were expected, and what they are."""
    shown = options.get("metavar")
    values = [shown] if isinstance(shown, str) else list(shown or [])
    if number.isdecimal() and len(values) not in (0, int(number)):
        values *= int(number)  # one name for all
    many = "value" if number.endswith("one") else "values"
    return f"{name}: expected {number} {many}{': ' if values else ''}{' '.join(values)}."


def _choice(name: str, options: Mapping[str, Any], given: str) -> str:
    """Return what was chosen, the choice that is most like it, and all choices."""
    choices = [str(choice) for choice in options.get("choices", ())]
    meant = alike(given.strip("'\""), choices)
    hint = f"; did you mean '{meant[0]}'? " if meant else ". "
    return f"invalid choice {given} of {name}{hint}Choose from {', '.join(choices)}."


def _value(name: str, options: Mapping[str, Any], kind: str, given: str) -> str:
    """Return what was given, and what was expected, which is the docstring of the function that parses it."""
    function = options.get("type")
    described = (getattr(function, "__doc__", None) or "").partition("\n")[0]
    found = re.match(r"(?:Parse|Return) (.*?)\.?$", described)
    expected = NUMBERS.get(kind) or (found[1] if found else f"a value of type {kind}")
    return f"{name}: expected {expected}; found {given}."


def _switch(name: str, options: Mapping[str, Any], given: str) -> str:
    """Return that a flag has no value."""
    return f"{name}: expected no value; found {given}."
