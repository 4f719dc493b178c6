"""Limits of a plan."""

from __future__ import annotations

from tfbig.plan.limits import Limits, device_for, workspace_of


def test_reserved_bytes() -> None:
    """They count on the device if it has a limit, and in host memory if strips are there too."""
    limits = Limits(100, 80)
    assert limits.without(30) == Limits(70, 80)
    loose = Limits(100, 80, firm=False, shared=True)
    assert loose.without(30) == Limits(100, 50, firm=False, shared=True, reserved=30)
    assert Limits(100, None, shared=True).without(30) == Limits(70, None, shared=True)


def test_workspace_of_a_gpu() -> None:
    """The device that is named for strips leaves them as many bytes, and not one more."""
    for strips in (0, 1, 14, 15, 16, 1000, 10**9, 15 * 2**30 - 1, 15 * 2**30, 10**12):
        need = device_for(strips)
        assert need - workspace_of(need) >= strips
        assert not need or need - 1 - workspace_of(need - 1) < strips
    assert Limits(100).with_workspace(64) == 64
    assert Limits(100, workspace=6).with_workspace(64) == device_for(64)
