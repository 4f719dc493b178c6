"""Trains a model from the command line: `--task` says what, `--mode` how, a run folder keeps the results."""

import sys

from tfbig.cli.commands.train import TASKS, main, settings_of

__all__ = ["TASKS", "main", "settings_of"]

if __name__ == "__main__":
    sys.exit(main())
