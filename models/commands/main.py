"""The console command `tfbig`: `tfbig COMMAND --help` says what each takes."""

import argparse
import sys

import tensorflow as tf

import tfbig
from models import settings as command_line
from models.commands import dataset, doctor, predict, tile, train

COMMANDS = {"doctor": doctor, "dataset": dataset, "tile": tile, "predict": predict}
CODES = "Exit code: 0 all went well; 1 nothing was done; 2 wrong flags; 3 slides failed (failed.csv) or are missing."


def main(argv=None):
    """Runs the command line; gives the exit code."""
    argv = sys.argv[1:] if argv is None else argv
    if argv[:1] == ["train"]:  # its flags are those of the task
        return train.main(argv[1:], "tfbig train")
    settings = parse(argv)
    try:
        return COMMANDS[settings.command].run(settings)
    except (tfbig.TfbigError, OSError, ValueError, tf.errors.OpError) as error:
        print(f"tfbig {settings.command}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"tfbig {settings.command}: stopped; what is finished stays", file=sys.stderr)
        return 130


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
    parsers.add_parser("train", help=_about(train))
    for name, command in COMMANDS.items():
        about = _about(command)
        own = parsers.add_parser(
            name, help=about, description=about, epilog=CODES, allow_abbrev=False
        )
        command.add_flags(own.add_argument)
    return parser.parse_args(command_line.with_config(argv))


def _about(command):
    return command.__doc__.partition("\n")[0]
