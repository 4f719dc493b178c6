"""The request that a command line makes: a command and its settings."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tfbig import __version__
from tfbig.cli import paths
from tfbig.cli.settings import evaluation, flag_errors, parser, training, yaml_flags
from tfbig.cli.settings.commands import COMMANDS, Command

EXIT_CODES = "Exit codes: 0: success; 1: error; 2: wrong flags; 3: some files failed (see failed.csv) or are missing."


@dataclass(frozen=True)
class Request:
    """A command and its settings.

    Attributes:
        name: Name of the command.
        command: The command.
        settings: Its settings.
    """

    name: str
    command: Command
    settings: Any


def parse(argv: Sequence[str], prog: str = "tfbig") -> Request:
    """Return the request of a command line `COMMAND FLAGS`; exit if it asks for help or if flags are wrong.

    Args:
        argv: The command line.
        prog: Name of the program in help and errors.

    Raises:
        FlagError: A path does not exist, or is of the wrong kind, or `--out` cannot be created; training checks its
            paths later.
        SourceError: The run that `tfbig evaluate` names does not exist, or a flag is only for training.
    """
    name, flags = (argv[0], argv[1:]) if argv else ("", [])
    if name == "train":
        whole = prog if prog.endswith(".py") else f"{prog} train"
        return Request(name, COMMANDS[name], training.parse(flags, whole))
    if name == "evaluate":
        command = COMMANDS[name]
        return Request(name, command, evaluation.parse(flags, command.about))
    main, commands = _parser(prog)
    namespace, unknown = main.parse_known_args(_with_config(argv))
    parser.refuse(commands[namespace.command], unknown)
    command = COMMANDS[namespace.command]
    assert command.settings is not None
    settings: Any = parser.from_namespace(command.settings, namespace)
    paths.check(settings)
    if getattr(settings, "out", None) and not getattr(settings, "dry_run", False):
        paths.check_results(settings.out, paths.inputs_of(settings))
    return Request(namespace.command, command, settings)


def _parser(prog: str) -> tuple[argparse.ArgumentParser, dict[str, argparse.ArgumentParser]]:
    """Return the parser of all commands but those whose flags depend on `--task`, and that of each command."""
    whole = argparse.ArgumentParser(
        prog=prog,
        description="Tile whole-slide images, train networks on them and predict.",
        epilog=EXIT_CODES,
        allow_abbrev=False,
    )
    whole.add_argument("--version", action="version", version=f"tfbig {__version__}")
    commands = whole.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, command in COMMANDS.items():
        if command.settings is None:
            commands.add_parser(name, help=command.about)
            continue
        subparser = commands.add_parser(
            name,
            help=command.about,
            description=command.about,
            epilog=EXIT_CODES,
            allow_abbrev=False,
        )
        parser.add_flags(subparser, command.settings)
    flag_errors.shorten(whole, {"COMMAND": {"help": "what to do", "choices": list(COMMANDS)}})
    return whole, commands.choices


def _with_config(argv: Sequence[str]) -> list[str]:
    """Insert the flags of the `--config` file into a command line `COMMAND FLAGS`."""
    argv = [parser.with_dashes(token) for token in argv]
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    first.add_argument("--config", metavar="FILE")
    flag_errors.shorten(first, {"--config": {"metavar": "FILE"}})
    config_flag, rest = first.parse_known_args(argv)
    command = COMMANDS.get(rest[0]) if rest else None
    if config_flag.config is None or command is None or command.settings is None:
        return argv
    return [rest[0], *yaml_flags.read_tokens(config_flag.config, command.settings), *rest[1:]]
