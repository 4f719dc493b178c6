"""Host memory of the stores of a step: ordinary memory, or page-locked memory if a GPU computes the step.

Copies from ordinary memory pass through memory of the driver, and the thread that starts one waits for it. From
page-locked memory a GPU copies on its own, while it computes, at the rate of its bus (`gpu.py copies`).
"""

from __future__ import annotations

import threading
from typing import Any, Final

import numpy as np

from tfbig.errors import Advice, BudgetError
from tfbig.stores.page_pool import PAGE, POOL, Pool
from tfbig.system import cuda_driver
from tfbig.system.budget import available_bytes
from tfbig.units import format_bytes

LOCKED_SHARE: Final = 0.5
"""Largest share of the available memory that is page-locked: the system can neither move it nor swap it out."""


class LockedPool(Pool):
    """Arrays in page-locked memory.

    Args:
        size: Bytes of the memory.

    Attributes:
        is_locked: Whether the driver has page-locked it.
    """

    def __init__(self, size: int) -> None:
        super().__init__(size)
        with self._lock:
            pages = self._open()
        self.size = len(pages)
        # A process that is forked would share the pages, and the first that writes would move them.
        self._advise("MADV_DONTFORK", 0, self.size)
        self.is_locked = cuda_driver.page_lock(self.address, self.size)

    def array(self, shape: tuple[int, ...], dtype: Any, wish: int | None = None) -> np.ndarray:
        """Return an uninitialised array; in ordinary memory if there is no room for it.

        Args:
            shape: Shape of the array.
            dtype: Element type.
            wish: Preferred first byte in the range; used if it is free.
        """
        try:
            return super().array(shape, dtype, wish)
        except MemoryError:
            return POOL.array(shape, dtype)

    @property
    def free_bytes(self) -> int:
        """Bytes that are not in use; all of them have been touched."""
        return self.size - self.used_bytes

    def trim(self) -> None:
        """Retain unused memory: pages that are locked must stay where they are."""

    def __del__(self) -> None:
        """Unlock the memory: the last array in it has been freed, and with it the last copy has ended."""
        if getattr(self, "is_locked", False):
            cuda_driver.page_unlock(self.address)


class HostMemory:
    """Chooses the memory of stores.

    Attributes:
        locked: Page-locked memory of the present step and of later ones; None without a GPU.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._can_lock: bool | None = None
        self.locked: LockedPool | None = None

    @property
    def free_bytes(self) -> int:
        """Bytes that earlier steps have left for reuse."""
        return POOL.free_bytes + (0 if self.locked is None else self.locked.free_bytes)

    def check(self, need: int) -> None:
        """Check that a step finds enough host memory, before the system ends the process for using too much.

        Args:
            need: Bytes of its stores; memory of earlier steps is reused.

        Raises:
            BudgetError: If fewer bytes are available.
        """
        free = available_bytes() + self.free_bytes
        if need > free:
            raise BudgetError(
                f"a step needs {format_bytes(need)} of host memory for images, but {format_bytes(free)} are available "
                "on this machine or in its control group (container, job).",
                Advice.LOWER_HOST,
            )

    def can_lock(self) -> bool:
        """Return whether memory can be page-locked; the first call tries one page, and a later failure counts."""
        if self._can_lock is None:
            self._can_lock = LockedPool(PAGE).is_locked
        return self._can_lock

    def page_lock(self, need: int) -> None:
        """Page-lock memory for the stores of a step, or for as many of them as a part of the memory has room for.

        Memory that is in use by another step stays as it is.

        Args:
            need: Bytes of the stores.
        """
        with self._lock:
            present = self.locked
            is_enough = present is not None and (present.size >= need or present.used_bytes > 0)
            if need == 0 or is_enough or not self.can_lock():
                return
            self.locked = present = None
            POOL.trim()
            pool = LockedPool(max(min(need, int(LOCKED_SHARE * available_bytes())), PAGE))
            self._can_lock = pool.is_locked
            self.locked = pool if pool.is_locked else None

    def pool(self, start: int | None, size: int) -> Pool:
        """Return the memory of a store.

        Args:
            start: Its planned first byte; None if it has none.
            size: Its bytes.
        """
        locked = self.locked
        if locked is None or start is None or start + size > locked.size:
            return POOL
        return locked


MEMORY = HostMemory()
"""Memory of the stores of this process."""
