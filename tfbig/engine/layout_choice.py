"""Choice of the layout that a step is traced with: from data, from a caller, or from what a trace knows."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace

import tensorflow as tf

from tfbig.engine import backgrounds, read_ahead
from tfbig.errors import BudgetError
from tfbig.geometry.background import Background
from tfbig.plan.plan import Plan
from tfbig.plan.planner import Planner
from tfbig.plan.search import GOOD_ENOUGH
from tfbig.plan.sweeps import Layout


class LayoutChoice:
    """Choice of layouts of one planner.

    Args:
        planner: The planner.
    """

    def __init__(self, planner: Planner) -> None:
        self.planner = planner
        self._chosen: list[Layout] = []
        self._forced = threading.local()
        self._warned: list[str] = []

    def for_shapes(
        self,
        shapes: Mapping[int, tuple[int, ...]],
        backgrounds: Mapping[int, Background] | None = None,
        learned: frozenset[int] | None = None,
    ) -> Layout:
        """Choose the layout for images of some shapes; an earlier one if it is nearly as fast, to save a trace.

        Args:
            shapes: `(N, rows, ..., C)` per input image.
            backgrounds: Background of the input images that have one.
            learned: As in `Planner.plan`.

        Returns:
            The layout.

        Raises:
            BudgetError: No layout fits.
        """
        batch = next(iter(shapes.values()))[0]
        sizes = {v: shape[1:-1] for v, shape in shapes.items()}
        best = self.planner.plan(batch, sizes, None, backgrounds, learned)
        self._say_what_is_computed(best)
        for layout in self._chosen:
            with suppress(BudgetError):
                plan = self.planner.plan(batch, sizes, layout, backgrounds, learned)
                if plan.seconds <= GOOD_ENOUGH * best.seconds:
                    return layout
        self._chosen.append(best.layout)
        return best.layout

    def for_images(
        self,
        images: Mapping[int, tf.Tensor],
        skips: bool = True,
        learned: frozenset[int] | None = None,
    ) -> Layout:
        """Choose the layout for eager images.

        Args:
            images: Tensor, or string handles `[N]`, per input image.
            skips: Whether background may be skipped; only the sum of its gradient is then known.
            learned: As in `Planner.plan`.

        Returns:
            The layout.

        Raises:
            BudgetError: No layout fits.
        """
        shapes = {v: read_ahead.shape_of(t) for v, t in images.items()}
        return self.for_shapes(shapes, backgrounds.expected(images) if skips else {}, learned)

    def is_plain(self, images: Mapping[int, tf.Tensor]) -> bool:
        """Return whether the plain model is to run instead of the program, because it fits.

        Args:
            images: Tensor, or string handles `[N]`, per input image; symbolic in a trace.
        """
        if not self.planner.limits.plain:
            return False
        if self.forced is None and tf.executing_eagerly():
            return self.for_images(images).plain
        return self.while_tracing(images).plain

    def _say_what_is_computed(self, plan: Plan) -> None:
        """Warn once about layers that have the background computed too."""
        if plan.everywhere and not self._warned:
            self._warned.extend(plan.everywhere)
            names = ", ".join(f"'{name}'" for name in plan.everywhere)
            warnings.warn(
                f"'{self.planner.prepared.options.name}': the results of {names} differ from pixel to pixel, so what "
                "depends on them is computed on the background too. Pool the image first, or remove what reads other "
                "pixels of the whole image (attention) or depends on the place of a pixel (noise, dropout of single "
                "pixels, flips, resizing), to skip it.",
                stacklevel=2,
            )

    @contextmanager
    def using(self, layout: Layout) -> Iterator[None]:
        """Use `layout` for everything traced in this context."""
        before, self._forced.layout = self.forced, layout
        try:
            yield
        finally:
            self._forced.layout = before

    def plainly(self) -> AbstractContextManager[None]:
        """Run the plain model wherever this planner would choose a layout in this context."""
        return self.using(Layout(plain=True))

    @property
    def forced(self) -> Layout | None:
        """Layout forced for the current thread (each replica traces in its own thread)."""
        return getattr(self._forced, "layout", None)

    def while_tracing(
        self, images: Mapping[int, tf.Tensor], learned: frozenset[int] | None = None
    ) -> Layout:
        """Choose the layout while tracing, from the sizes that are known.

        If all are known, a step that does not fit fails now. If the batch size is not known, images are
        streamed and none stays on the device: there may be no room for a larger batch.

        Args:
            images: Symbolic tensor, or string handles `[N]`, per input image.
            learned: As in `Planner.plan`.

        Returns:
            The layout.

        Raises:
            BudgetError: No layout fits.
        """
        if self.forced is not None:
            return self.forced
        sizes = {v: tuple(t.shape[1:-1]) for v, t in images.items() if t.shape.rank != 1}
        if len(sizes) < len(images) or any(None in size for size in sizes.values()):
            return self.planner.prepared.straight
        batch = next(iter(images.values())).shape[0]
        layout = self.planner.plan(batch or 1, sizes, learned=learned).layout
        if not batch and layout.plain:
            return self.planner.prepared.straight
        return layout if batch else replace(layout.in_one_strip(False), kept=frozenset())
