"""Trains a network on slides, bags of their tiles, or large images; as train.py does, with the same flags."""

import sys

import tfbig
from tfbig.cli import machine, open_run
from tfbig.cli import settings as command_line
from tfbig.cli.tasks import mil, patchgd, segmentation
from tfbig.system import progress, signals

TASKS = {"segmentation": segmentation, "mil": mil, "patchgd": patchgd}


def settings_of(argv, prog="train.py"):
    """Settings from flags, over `--config`, over those of the resumed run, over the defaults."""
    return command_line.parse(argv, TASKS, prog)


def main(argv=None, prog="train.py"):
    """Runs the command line; gives the exit code, 3 if something was left out."""
    settings = settings_of(sys.argv[1:] if argv is None else argv, prog)
    progress.show(False if settings.quiet else None)
    with signals.on_signals("stops after this strip and saves; once more ends it at once"):
        try:
            command_line.prepare(settings)
            with machine.telling():
                for line in settings.told:
                    print(line)
                return TASKS[settings.task].train(settings)
        except tfbig.Stopped as stopped:
            told = f"{stopped}; --resume with --out goes on from here"
            return _fail(prog, told, code=signals.exit_code())
        except (tfbig.TfbigError, OSError) as error:
            return _fail(prog, error)
        finally:
            open_run.close_run()


def about(doc):
    """The first line of a module's docstring."""
    return doc.partition("\n")[0]


def _fail(prog, error, code=1):
    print(f"{prog}: {error}", file=sys.stderr)
    return code
