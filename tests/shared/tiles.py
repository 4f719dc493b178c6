"""The means to have every image cut into tiles."""

from __future__ import annotations

import pytest

from tfbig.plan import tile_search
from tfbig.plan.strip_search import Strips


def cut_in_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut every image into three parts across, whether or not its rows fit."""

    def counts(strips: Strips) -> list[int]:
        widths = (strips.extents[v][1] for v in strips.sweep.observed)
        return [min(3, *widths)] if strips.sweep.can_tile else []

    search = Strips.fewest.func
    monkeypatch.setattr(Strips, "fewest", property(lambda s: search(s) if s.blocks else None))
    monkeypatch.setattr(tile_search, "block_counts", counts)
