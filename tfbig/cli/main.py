"""Console command `tfbig`; `tfbig COMMAND --help` describes each command."""

import argparse
import sys

import tensorflow as tf

import tfbig
from tfbig.cli import messages, paths
from tfbig.cli import settings as command_line
from tfbig.cli.commands import dataset, doctor, evaluate, plan, predict, report, tile, train
from tfbig.system import signals

COMMANDS = {
    "doctor": doctor,
    "plan": plan,
    "dataset": dataset,
    "tile": tile,
    "predict": predict,
    "report": report,
}
EXIT_CODES = "Exit codes: 0: success; 1: error; 2: wrong flags; 3: some slides failed (see failed.csv) or are missing."


TASK_COMMANDS = {
    "train": (train, lambda argv: train.main(argv, "tfbig train")),
    "evaluate": (evaluate, evaluate.main),
}
"""Commands whose flags depend on `--task`."""


def main(argv=None):
    """Run the command line and return the exit code."""
    argv = sys.argv[1:] if argv is None else argv
    name = argv[0] if argv else ""
    with signals.on_signals("stopping after this strip; press again to quit at once"):
        try:
            if name in TASK_COMMANDS:
                return TASK_COMMANDS[name][1](argv[1:])
            settings = parse(argv)
            paths.check(settings)
            return COMMANDS[settings.command].run(settings)
        except tfbig.Stopped as stopped:
            print(f"tfbig {name}: {stopped}; finished slides are kept", file=sys.stderr)
            return signals.exit_code()
        except paths.FlagError as error:
            print(f"tfbig {name}: {error}", file=sys.stderr)
            return 2
        except (tfbig.TfbigError, OSError, ValueError, tf.errors.OpError) as error:
            print(f"tfbig {name}: {messages.in_flags(error, name)}", file=sys.stderr)
            return 1


def parse(argv):
    """Parse the flags; they win over those of `--config`, and those over the defaults."""
    parser = argparse.ArgumentParser(
        prog="tfbig",
        description="Tile whole-slide images, train networks on them and predict.",
        epilog=EXIT_CODES,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"tfbig {tfbig.__version__}")
    parsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (command, _) in TASK_COMMANDS.items():
        parsers.add_parser(name, help=train.first_line(command.__doc__))
    for name, command in COMMANDS.items():
        about = train.first_line(command.__doc__)
        subparser = parsers.add_parser(
            name, help=about, description=about, epilog=EXIT_CODES, allow_abbrev=False
        )
        command.add_flags(subparser.add_argument)
    return parser.parse_args(command_line.with_config(argv))


if __name__ == "__main__":
    sys.exit(main())
