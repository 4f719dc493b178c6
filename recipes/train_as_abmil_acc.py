"""Train on bags by the published loop of ABMIL-ACC, for the recipe `abmil-acc-qmnist-as-coded`.

    python -m tfbig.recipes.write_qmnist_bags BAGS --data QMNIST --bags 300 30 60 --instances 50
    python -m tfbig.recipes.train_as_abmil_acc --config recipes/abmil-acc-qmnist-as-coded.yaml --data BAGS

The flags are those of `tfbig train --task mil --mode accumulate`; `tfbig evaluate` and `tfbig predict` read the run.
How the loop differs from the exact one is described in `tfbig/mil/abmil_acc.py`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from tfbig.cli.tasks.mil import MIL
from tfbig.recipes import own_tasks


class PublishedLoop(MIL):
    """Bags of which slices are trained as in the code of ABMIL-ACC."""

    loop = "published"


def main(argv: Sequence[str] | None = None) -> int:
    """Train, and return the exit code; 3 if bags were skipped."""
    return own_tasks.train_with("mil", PublishedLoop, argv)


if __name__ == "__main__":
    sys.exit(main())
