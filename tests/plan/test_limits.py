"""Limits of a plan."""

from __future__ import annotations

from tfbig.plan.limits import Limits


def test_reserved_bytes() -> None:
    """They count on the device if it has a limit, and in host memory if strips are there too."""
    limits = Limits(100, 80)
    assert limits.without(30) == Limits(70, 80)
    loose = Limits(100, 80, firm=False, shared=True)
    assert loose.without(30) == Limits(100, 50, firm=False, shared=True, reserved=30)
    assert Limits(100, None, shared=True).without(30) == Limits(70, None, shared=True)
