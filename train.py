"""Train a model from the command line; the same as `tfbig train`."""

import sys

from tfbig.cli.commands.train import TASKS, main, settings_of

__all__ = ["TASKS", "main", "settings_of"]

if __name__ == "__main__":
    sys.exit(main())
