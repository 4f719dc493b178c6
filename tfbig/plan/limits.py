"""Bytes that a plan is allowed, and bytes that it is projected to use."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Limits:
    """Bytes that a plan is allowed.

    Args:
        device: Most bytes on the device at any time: strips, and images that are kept there.
        host: Most bytes of stored images in host memory; None for no limit.
        disk: Most bytes of stored images in the scratch file.
        firm: Whether `device` is a limit; otherwise a sweep may exceed it if its smallest strip needs more.
        shared: Whether strips are in host memory too; `host` then limits all bytes of the model.
        reserved: Bytes of the host limit that layers use that do not stream; not part of `host`.
        plain: Most bytes of the plain model for which it runs instead of strips; 0 for never.
    """

    device: int
    host: int | None = None
    disk: int = 0
    firm: bool = True
    shared: bool = False
    reserved: int = 0
    plain: int = 0

    def without(self, reserved: int) -> Limits:
        """Return the limits that remain if some bytes are reserved.

        Args:
            reserved: Bytes on the device, and in host memory if the two are one.

        Returns:
            The remaining limits.
        """
        left = max(self.device - reserved, 1)
        limits = replace(self, device=left) if self.firm else self
        if not self.shared or self.host is None:
            return limits
        return replace(limits, host=self.host - reserved, reserved=reserved)


@dataclass(frozen=True)
class Projected:
    """Bytes that a plan is projected to use.

    Args:
        device: Most bytes of strips, and of images kept on the device, at any time.
        host: Most bytes of stored images and their gradients in host memory at any time.
        disk: Most bytes of them in the scratch file.
        fixed: Bytes besides images and strips: TensorFlow itself, traces, gradients of the weights, freed strips.
        model: Bytes of the model between steps: weights and optimizer state.
    """

    device: int
    host: int
    disk: int
    fixed: int
    model: int
