"""The request that a command line makes: a command and its settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tfbig import __version__
from tfbig.cli import paths
from tfbig.cli.settings import (
    evaluation,
    flag_errors,
    help_text,
    merge,
    parser,
    training,
    yaml_flags,
)
from tfbig.cli.settings.commands import COMMANDS, Command
from tfbig.cli.settings.flag import flags_of
from tfbig.cli.settings.merge import Layer

EXIT_CODES = "Exit codes: 0: success; 1: error; 2: wrong flags; 3: some files failed (see failed.csv) or are missing."
ABOUT = "Tile whole-slide images, train networks on them and predict."


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
    """Parse a command line `COMMAND FLAGS`; print the help and exit if it asks for it.

    `prog` is the name of the program in help and errors.

    Raises:
        FlagError: A flag is wrong, a path does not exist, or is of the wrong kind, or `--out` cannot be created;
            training checks its paths later.
        SourceError: The run that `tfbig evaluate` names does not exist, or a flag is only for training.
    """
    name, flags = _name(argv, prog), argv[1:]
    command, whole = COMMANDS[name], prog if prog.endswith(".py") else f"{prog} {name}"
    if name == "train":
        return Request(name, command, training.parse(flags, whole))
    if name == "evaluate":
        return Request(name, command, evaluation.parse(flags, command.about))
    settings = _settings(command, flags, whole)
    paths.check(settings)
    if getattr(settings, "out", None) and not getattr(settings, "dry_run", False):
        paths.check_results(settings.out, paths.inputs_of(settings))
    return Request(name, command, settings)


def _name(argv: Sequence[str], prog: str) -> str:
    """The name of the command; print what the program says about itself, and exit, if it is asked for it.

    Raises:
        FlagError: There is no such command.
    """
    name = next(iter(argv), "")
    if name in (*parser.HELP, "--version"):
        print(f"tfbig {__version__}" if name == "--version" else page(prog))
        raise SystemExit(0)
    with flag_errors.listed_by(prog):
        if not name:
            raise paths.FlagError("COMMAND is missing: what to do.")
        if name not in COMMANDS:
            raise paths.FlagError(flag_errors.no_choice("COMMAND", name, COMMANDS))
    return name


def page(prog: str) -> str:
    """The help of the program: its commands and exit codes."""
    commands = [
        line for name, command in COMMANDS.items() for line in help_text.entry(name, command.about)
    ]
    return "\n\n".join(
        [
            f"usage: {prog} COMMAND [FLAGS]",
            ABOUT,
            "\n".join(["commands:", *commands]),
            f"`{prog} COMMAND --help` lists the flags of a command; `{prog} --version` prints the version.",
            help_text.wrapped(EXIT_CODES),
        ]
    )


def _settings(command: Command, argv: Sequence[str], whole: str) -> Any:
    """Parse the settings of a command whose flags do not depend on a task."""
    assert command.settings is not None
    flags = flags_of(command.settings)
    if parser.asks_for_help(argv):
        positional = [help_text.spelling(each) for each in flags.values() if each.positional]
        usage = " ".join([whole, *positional, "[FLAGS]"])
        print(help_text.page(usage, command.about, flags, EXIT_CODES))
        raise SystemExit(0)
    with flag_errors.listed_by(whole):
        given = Layer(parser.read(argv, flags))
    config = given.values.get("config") or []
    recipe = [yaml_flags.layer_of(file) for file in config]
    return merge.merged(command.settings, [*recipe, given], whole)
