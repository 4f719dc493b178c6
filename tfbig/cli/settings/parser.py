"""Parsers of the command line, built from settings classes."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import MISSING
from typing import Any, TypeVar

from tfbig.cli.settings import flag_errors
from tfbig.cli.settings.flag import Flag, fields_of, flags_of, sections_of

S = TypeVar("S")


def add_flags(parser: argparse.ArgumentParser, settings: type) -> None:
    """Add the flags of a settings class to a parser, in the sections of its help.

    Args:
        parser: The parser, whose errors are one line from now on.
        settings: Settings class.
    """
    groups: dict[str, Any] = {"": parser}
    sections, arguments = sections_of(settings), {}
    for name, field in fields_of(settings).items():
        title = sections[name]
        if title not in groups:
            groups[title] = parser.add_argument_group(title)
        declared: Flag = field.metadata["flag"]
        names, options = _argument(name, declared, field.default)
        groups[title].add_argument(*names, help=declared.help, **options)
        shown = options.get("metavar", names[0]) if declared.positional else names[0]
        arguments[shown] = {"help": declared.help, **options}
    flag_errors.shorten(parser, arguments)


def parse(parser: argparse.ArgumentParser, settings: type[S], argv: Sequence[str]) -> S:
    """Parse the flags of a settings class, which the parser has; exit if they are wrong.

    Args:
        parser: Parser with the flags of the class.
        settings: Settings class.
        argv: The command line.
    """
    namespace, unknown = parser.parse_known_args(argv)
    refuse(parser, unknown)
    return from_namespace(settings, namespace)


def refuse(parser: argparse.ArgumentParser, unknown: Sequence[str]) -> None:
    """Exit if there are arguments that the parser does not know, and name the flags that are most like them.

    Args:
        parser: The parser.
        unknown: The arguments.
    """
    if unknown:
        known = re.findall(r"--[a-z0-9-]+", parser.format_usage())
        flag_errors.unknown(parser, unknown, known)


def from_namespace(settings: type[S], namespace: argparse.Namespace) -> S:
    """Return the settings that a parser read."""
    values = vars(namespace)
    flags = flags_of(settings)
    return settings(**{name: _value(declared, values[name]) for name, declared in flags.items()})


def with_dashes(token: str) -> str:
    """Return `--batch_size=4` as `--batch-size=4`."""
    name, equals, value = token.partition("=")
    return name.replace("_", "-") + equals + value if token.startswith("--") else token


def _argument(name: str, declared: Flag, default: Any) -> tuple[list[str], dict[str, Any]]:
    """Return the names and options of an argument of argparse."""
    options = dict(declared.options)
    required = default is MISSING
    if declared.positional:
        return [name], options if required else options | {"default": default}
    if default is False and not options:
        options["action"] = "store_true"
    options |= {"required": True} if required else {"default": default}
    return [f"--{name.replace('_', '-')}"], options


def _value(declared: Flag, value: Any) -> Any:
    """Return a value that cannot change; a space before "-" only kept it from being taken for a flag."""
    if not isinstance(value, list):
        return value
    if declared.positional:
        return tuple(value)
    return tuple(v[1:] if str(v).startswith(" -") else v for v in value)
