"""A slide: one image at several sizes, and how large its pixels are."""

from __future__ import annotations

import math
import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tfbig.errors import SourceError
from tfbig.sources.files import PathLike
from tfbig.sources.resolution import Resolution
from tfbig.sources.slides.georeference import Georeference
from tfbig.sources.source import Rows, Source
from tfbig.sources.views import Scaled, scaled_mpp

TOLERANCE = 0.01
"""A level whose pixels differ by no more than this share from those asked for is taken as it is."""
ENLARGED = 1.25
"""How much finer than level 0 pixels may be asked for: slides of one scanner differ by a few percent."""
UM_TIMES_POWER = 10.0
"""Micrometres per pixel times magnification: 0.5 at 20x, 0.25 at 40x."""
_BLOCK_ROWS = 256


def title_of(path: PathLike) -> str:
    """The name of a file without its endings, after which results are named."""
    return Path(path).stem.removesuffix(".ome")


class Slide(ABC):
    """A pyramid of images of one slide, level 0 the finest.

    Subclasses call `super().__init__` and define `_open`.

    Args:
        name: the path.
        levels: `(rows, columns)` of each level.
        channels: of a pixel.
        dtype: of a sample.
        resolution: what the file says of level 0.
        reader: which program decodes it.

    Attributes:
        name, levels, reader: as given.
        shape: `(rows, columns, channels)` of level 0.
        dtype: NumPy dtype of a sample.
        mpp: micrometres per pixel of rows and columns at level 0, or None where nothing says it.
        magnification: of the objective, or None.
        georeference: of a GeoTIFF at level 0, or None.
    """

    def __init__(
        self,
        name: str,
        levels: Sequence[tuple[int, int]],
        channels: int,
        dtype: npt.DTypeLike,
        resolution: Resolution,
        reader: str,
    ) -> None:
        self.name, self.reader = name, reader
        self.levels = tuple((int(rows), int(columns)) for rows, columns in levels)
        self.shape = (*self.levels[0], channels)
        self.dtype = np.dtype(dtype)
        self.mpp, self.magnification = resolution.mpp, resolution.magnification
        self.georeference: Georeference | None = None
        self._sources: dict[int, Source] = {}
        self._closed = False
        self._lock = threading.Lock()

    @abstractmethod
    def _open(self, level: int) -> Source:
        """The source of a level that there is."""

    @property
    def title(self) -> str:
        """The name of the file without its endings."""
        return title_of(self.name)

    @property
    def downsamples(self) -> tuple[float, ...]:
        """How many pixels of level 0 a pixel of each level is wide, the mean of rows and columns."""
        return tuple(sum(self._steps(level)) / 2 for level in range(len(self.levels)))

    def level(self, number: int = 0) -> Source:
        """The image of a level; nothing is read.

        Raises:
            SourceError: there is no such level, it cannot be decoded, or the slide was closed.
        """
        if not 0 <= number < len(self.levels):
            sizes = ", ".join(f"{rows} x {columns}" for rows, columns in self.levels)
            raise SourceError(
                f"{self.name}: level {number} was asked for, the slide has {len(self.levels)} ({sizes}), counted from "
                "0."
            )
        with self._lock:
            if self._closed:
                raise SourceError(f"{self.name}: was closed. Open the slide again to read from it.")
            if number not in self._sources:
                source = self._open(number)
                source.mpp = scaled_mpp(self.mpp, self._steps(number))
                self._sources[number] = source
            return self._sources[number]

    def read(self, rows: tuple[int, int], columns: tuple[int, int], level: int = 0) -> Rows:
        """A rectangle of a level, in its own pixels.

        Args:
            rows: `(first, after the last)`.
            columns: the same.
            level: of the pyramid.

        Returns:
            `[rows, columns, C]` of `dtype`.

        Raises:
            IndexError: the rectangle is empty or reaches outside the level.
            SourceError: the file is damaged there.
        """
        return self.level(level).read_window(rows, columns)

    def at(
        self,
        *,
        mpp: float | None = None,
        magnification: float | None = None,
        level: int | None = None,
    ) -> Source:
        """The slide at one resolution; nothing is read.

        The coarsest level that is fine enough is scaled down as it is read (bilinear, with a filter as wide as that
        asks), or taken as it is where its pixels differ by 1 % or less.

        Args:
            mpp: micrometres per pixel.
            magnification: 20 for 20x, of the objective that the file names; where it names none, 0.5 um per pixel is
                20x.
            level: of the pyramid, as it is.

        Returns:
            A source, with its own `mpp` where that of the slide is known.

        Raises:
            ValueError: not one of the three is given, or it is no positive number.
            SourceError: the size of the slide's pixels is not known, or they are coarser than those asked for.
        """
        if level is not None and mpp is None and magnification is None:
            return self.level(level)
        return self._scaled(*self._steps_at(mpp, magnification, level))

    def _steps_at(
        self, mpp: float | None, magnification: float | None, level: int | None
    ) -> tuple[float, float]:
        """Pixels of level 0 in one at a resolution, of rows and columns."""
        wanted = {"mpp": mpp, "magnification": magnification, "level": level}
        given = {key: value for key, value in wanted.items() if value is not None}
        if len(given) != 1 or (level is None and not 0 < next(iter(given.values())) < math.inf):
            raise ValueError(
                f"a slide was asked for at {given or 'no resolution'}; expected one of mpp, magnification and level, "
                "a positive number."
            )
        if level is not None:
            self.level(level)  # or an error that says which there are
            return self._steps(level)
        return self._steps_for(mpp, magnification)

    def step(
        self,
        *,
        mpp: float | None = None,
        magnification: float | None = None,
        level: int | None = None,
    ) -> float:
        """Pixels of level 0 in one at a resolution, the mean of rows and columns.

        Args, Raises: as in `at`.
        """
        return sum(self._steps_at(mpp, magnification, level)) / 2

    def scaled(self, factor: float) -> Source:
        """The slide `factor` times as small as level 0, from the coarsest level that is fine enough; nothing is read.

        Raises:
            SourceError: level 0 is too coarse for a factor below 1.
        """
        return self._scaled(factor, factor)

    def thumbnail(self, max_side: int = 1024) -> Rows:
        """A small picture of the whole slide, from the coarsest level that is large enough.

        Args:
            max_side: most rows and columns.

        Returns:
            `[rows, columns, C]`, uint8.

        Raises:
            SourceError: the slide is not uint8, or is damaged.
        """
        whole = self.scaled(max(max(self.shape[:2]) / max_side, 1.0))
        strips = range(0, whole.shape[0], _BLOCK_ROWS)
        return np.concatenate([whole.read(i, min(i + _BLOCK_ROWS, whole.shape[0])) for i in strips])

    def close(self) -> None:
        """Lets go of open files; the slide and the sources of its levels then raise SourceError."""
        with self._lock:
            self._closed = True
            for source in self._sources.values():
                source.close()
            self._sources.clear()

    def describe(self) -> str:
        """One line: size, levels, resolution, reader."""
        size = " x ".join(map(str, self.shape))
        rows, columns = self.mpp or (0.0, 0.0)
        pixels = f"{rows:.4g} x {columns:.4g} um a pixel" if self.mpp else "size of pixels unknown"
        power = f", {self.magnification:g}x" if self.magnification else ""
        levels = ", ".join(f"{n:.4g}" for n in self.downsamples)
        return (
            f"{self.name}: {size} {self.dtype}, {pixels}{power}, levels {levels}, by {self.reader}"
        )

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.describe()}>"

    def _steps(self, level: int) -> tuple[float, float]:
        """Pixels of level 0 in one of a level, of rows and columns."""
        (rows, columns), (own_rows, own_columns) = self.levels[0], self.levels[level]
        return rows / own_rows, columns / own_columns

    def _steps_for(self, mpp: float | None, magnification: float | None) -> tuple[float, float]:
        """Pixels of level 0 in one of the resolution asked for."""
        if magnification is not None and self.magnification is not None:
            step = self.magnification / magnification
            return step, step
        if self.mpp is None:
            raise SourceError(
                f"{self.name}: does not say how large its pixels are; expected OpenSlide's mpp, TIFF's resolution tags "
                "or OME-XML. Give it: mpp=0.25, on the command line --mpp-of FILE, a CSV with columns wsi,mpp."
            )
        target = UM_TIMES_POWER / magnification if magnification is not None else mpp
        assert target is not None
        return target / self.mpp[0], target / self.mpp[1]

    def _scaled(self, down: float, across: float) -> Source:
        if min(down, across) * ENLARGED < 1:
            raise SourceError(
                f"{self.name}: its finest pixels are {1 / min(down, across):.3g} times as coarse as those asked for; "
                f"expected {ENLARGED} times at most. Ask for a coarser resolution, or leave the slide out."
            )
        fits = [
            number
            for number in range(len(self.levels))
            if all(
                own <= step * (1 + TOLERANCE)
                for own, step in zip(self._steps(number), (down, across), strict=True)
            )
        ]
        number = fits[-1] if fits else 0
        source, own = self.level(number), self._steps(number)
        ratios = down / own[0], across / own[1]
        if all(abs(ratio - 1) <= TOLERANCE for ratio in ratios):
            return source
        shape = [max(round(n / ratio), 1) for n, ratio in zip(source.shape, ratios, strict=False)]
        return Scaled(source, (shape[0], shape[1]))
