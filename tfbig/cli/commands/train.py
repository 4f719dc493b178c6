"""Train a network on slides, on bags of tiles, or on large images; the same as train.py."""

import sys

import tfbig
from tfbig.cli import machine, messages, open_run, paths
from tfbig.cli import settings as command_line
from tfbig.cli.tasks import mil, patchgd, segmentation
from tfbig.system import progress, signals

TASKS = {"segmentation": segmentation, "mil": mil, "patchgd": patchgd}


def settings_of(argv, prog="train.py"):
    """Return the settings: flags win over `--config`, that over the resumed run, that over the defaults.

    Args:
        argv: The command line.
        prog: Name of the program in help and errors.
    """
    return command_line.parse(argv, TASKS, prog)


def main(argv=None, prog="train.py"):
    """Run the command line and return the exit code; 3 if files were skipped."""
    settings = settings_of(sys.argv[1:] if argv is None else argv, prog)
    progress.show(False if settings.quiet else None)
    with signals.on_signals(
        "stopping after this strip, with a checkpoint; press again to quit at once"
    ):
        try:
            command_line.prepare(settings)
            with machine.chief_prints():
                for line in settings.notices:
                    print(line)
                return TASKS[settings.task].train(settings)
        except tfbig.Stopped as stopped:
            message = f"{stopped}; --resume with --out continues from here"
            return _fail(prog, message, code=signals.exit_code())
        except paths.FlagError as error:
            return _fail(prog, error, code=2)
        except (tfbig.TfbigError, OSError) as error:
            return _fail(prog, error)
        finally:
            open_run.close_run()


def first_line(doc):
    """Return the first line of a docstring."""
    return doc.partition("\n")[0]


def _fail(prog, error, code=1):
    print(f"{prog}: {messages.in_flags(error, 'train')}", file=sys.stderr)
    return code
