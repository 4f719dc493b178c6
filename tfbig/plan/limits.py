"""Bytes that a plan is allowed, and bytes that it is projected to use."""

from __future__ import annotations

from dataclasses import dataclass, replace

KERNEL_ELEMENTS = 2**31 - 1
"""Most elements of a tensor. Kernels fail or return wrong results with more (tensorflow issues 60330, 8471, 124949)."""

WORKSPACE_SHARE = 16
"""One part in so many of the bytes of a GPU is for the workspace of its kernels."""

MOST_WORKSPACE = 2**30
"""Most bytes of it."""


def workspace_of(device: int) -> int:
    """Return the bytes of a GPU that a kernel of a convolution may use besides its images.

    Args:
        device: Bytes that are allowed on the GPU.
    """
    return min(device // WORKSPACE_SHARE, MOST_WORKSPACE)


def device_for(strips: int) -> int:
    """Return the fewest bytes of a GPU that leave some for strips besides `workspace_of` them.

    Args:
        strips: Bytes for strips.
    """
    share = max(strips - 1, 0) // (WORKSPACE_SHARE - 1)
    return strips + min(share, MOST_WORKSPACE)


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
        workspace: Part of `device` that a kernel may use besides its images.
    """

    device: int
    host: int | None = None
    disk: int = 0
    firm: bool = True
    shared: bool = False
    reserved: int = 0
    plain: int = 0
    workspace: int = 0

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

    def with_workspace(self, strips: int) -> int:
        """Return the device limit under which strips of some bytes fit.

        Args:
            strips: Bytes of strips, and of whatever else is on the device.
        """
        return device_for(strips) if self.workspace else strips


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
