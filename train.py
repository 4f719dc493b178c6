"""Trains a model from the command line: `--task` says what, `--mode` how, a run folder keeps the results."""

import sys

import tfbig
from models import settings as command_line
from models.tasks import mil, patchgd, segmentation

TASKS = {"segmentation": segmentation, "mil": mil, "patchgd": patchgd}


def main(argv=None):
    """Runs the command line; gives the exit code."""
    settings = command_line.parse(sys.argv[1:] if argv is None else argv, TASKS)
    try:
        TASKS[settings.task].train(settings)
    except (tfbig.TfbigError, OSError) as error:
        return _fail(error)
    except KeyboardInterrupt:
        return _fail("stopped; --resume with --out continues after the last whole epoch", code=130)
    return 0


def _fail(error, code=1):
    print(f"train.py: {error}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
