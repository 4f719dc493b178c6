"""Images with background, and the means to have every sweep skip it in small tiles."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from tfbig.engine import backgrounds
from tfbig.errors import BudgetError
from tfbig.geometry.background import Background
from tfbig.plan import active_strips, search
from tfbig.plan.plan import Plan
from tfbig.plan.planner import Planner


@dataclass
class Skipping:
    """Record of the plans that skipped background in a test.

    Args:
        known: Background of tensors, by the size of the image.
        plans: Plans that skip background, in order.
        required: Whether plans that skip nothing of a background are refused.
    """

    known: dict[tuple[int, ...], Background] = field(default_factory=dict)
    plans: list[Plan] = field(default_factory=list)
    required: bool = True

    def active(self) -> list[float]:
        """Return the share of the image that each sweep of the last plan computes."""
        return [cost.active for cost in self.plans[-1].costs]


def small_tiles(monkeypatch: pytest.MonkeyPatch, least: int = 4) -> Skipping:
    """Skip background wherever there is any, in the smallest tiles that there may be.

    Args:
        monkeypatch: Pytest's fixture.
        least: Fewest rows and columns of a tile.

    Returns:
        A record, whose `known` gives background to tensors, which have none otherwise.
    """
    record = Skipping()
    everywhere, plan_of = search._everywhere, Planner.plan

    def nowhere(problem: Any) -> Plan:
        if record.required and problem.backgrounds:
            raise BudgetError("only plans that skip background are tested")
        return everywhere(problem)

    def plan(self: Planner, *arguments: Any, **options: Any) -> Plan:
        found = plan_of(self, *arguments, **options)
        if found.active_tiles:
            record.plans.append(found)
        return found

    def expected(images: Mapping[int, Any]) -> dict[int, Background]:
        return {v: b for v, t in images.items() if (b := record.known.get(tuple(t.shape[1:-1])))}

    monkeypatch.setattr(active_strips, "LEAST_TILE", least)
    monkeypatch.setattr(active_strips, "START_OPERATIONS", 0)
    monkeypatch.setattr(search, "_everywhere", nowhere)
    monkeypatch.setattr(Planner, "plan", plan)
    find_expected, find = backgrounds.expected, backgrounds.found
    monkeypatch.setattr(backgrounds, "expected", lambda i: find_expected(i) or expected(i))
    monkeypatch.setattr(backgrounds, "found", lambda i: find(i) or expected(i))
    return record


def mask_of(size: tuple[int, ...], seed: int = 0, patches: int = 2, side: int = 12) -> np.ndarray:
    """Return a mask of some rectangles, True on the foreground.

    Args:
        size: Rows, columns, ...
        seed: Seed of the places of the rectangles.
        patches: Number of rectangles.
        side: Their largest side.
    """
    random, mask = np.random.default_rng(seed), np.zeros(size, bool)
    for _ in range(patches):
        starts = [int(random.integers(0, n)) for n in size]
        mask[tuple(slice(s, s + int(random.integers(1, side))) for s in starts)] = True
    return mask


def image_of(mask: np.ndarray, channels: int, batch: int = 1, dtype: str = "float64") -> np.ndarray:
    """Return images `[N, H, W, C]` of noise on a mask and one colour elsewhere."""
    random = np.random.default_rng(7)
    noise = random.normal(size=(batch, *mask.shape, channels))
    colour = random.normal(size=(batch, *[1] * mask.ndim, channels))
    return np.where(mask[None, ..., None], noise, colour).astype(dtype)


def projected(mask: np.ndarray, cell: int = 1) -> Background:
    """Return the background of an image with a mask; cells reach through all axes but the first two."""
    flat = mask.reshape(*mask.shape[:2], -1).any(-1) if mask.ndim > 2 else mask
    return Background(flat, 1).coarser(cell)
