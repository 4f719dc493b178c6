"""The console command `tfbig`: `tfbig COMMAND --help` says what each takes."""

import argparse
import sys

import tensorflow as tf

import tfbig
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
CODES = "Exit code: 0 all went well; 1 nothing was done; 2 wrong flags; 3 slides failed (failed.csv) or are missing."


OF_TASKS = {
    "train": (train, lambda argv: train.main(argv, "tfbig train")),
    "evaluate": (evaluate, evaluate.main),
}
"""Commands whose flags are those of the task."""


def main(argv=None):
    """Runs the command line; gives the exit code."""
    argv = sys.argv[1:] if argv is None else argv
    name = argv[0] if argv else ""
    with signals.on_signals("stops after this strip; once more ends it at once"):
        try:
            if name in OF_TASKS:
                return OF_TASKS[name][1](argv[1:])
            settings = parse(argv)
            return COMMANDS[settings.command].run(settings)
        except tfbig.Stopped as stopped:
            print(f"tfbig {name}: {stopped}; what is finished stays", file=sys.stderr)
            return signals.exit_code()
        except (tfbig.TfbigError, OSError, ValueError, tf.errors.OpError) as error:
            print(f"tfbig {name}: {error}", file=sys.stderr)
            return 1


def parse(argv):
    """Settings from flags, over `--config`, over the defaults."""
    parser = argparse.ArgumentParser(
        prog="tfbig",
        description="Whole-slide images: tiles, training, predictions.",
        epilog=CODES,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"tfbig {tfbig.__version__}")
    parsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (command, _) in OF_TASKS.items():
        parsers.add_parser(name, help=train.about(command.__doc__))
    for name, command in COMMANDS.items():
        about = train.about(command.__doc__)
        own = parsers.add_parser(
            name, help=about, description=about, epilog=CODES, allow_abbrev=False
        )
        command.add_flags(own.add_argument)
    return parser.parse_args(command_line.with_config(argv))
