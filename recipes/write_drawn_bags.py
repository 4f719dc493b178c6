"""Write bags of drawn tiles, to try `tfbig train --task mil` without data.

    python -m tfbig.recipes.write_drawn_bags data/drawn
    tfbig train --task mil --data data/drawn --out runs/drawn

A tile shows a disc, a cross, a bar or a ring, in the colours of a stained section; a bag with rings is positive.
"""

from __future__ import annotations

from collections.abc import Sequence

from tfbig.mil import generate
from tfbig.recipes import folders
from tfbig.recipes.write_qmnist_bags import CLASSES, add_bag_flags, composed

TILES = 1500
"""Number of tiles of which the bags of a split are composed."""


def main(argv: Sequence[str] | None = None) -> None:
    """Read the command line, and write the folder."""
    parser = folders.parser(__doc__, "the bags")
    add_bag_flags(parser, (150, 30, 30), 20, 0.2, generate.SHAPES.index("ring"), 24)
    given = parser.parse_args(argv)
    pools = [generate.shapes(TILES, given.tile, given.seed * 10 + place) for place in range(3)]
    folders.write_bags(given.out, composed(given, pools), CLASSES)


if __name__ == "__main__":
    folders.run(main)
