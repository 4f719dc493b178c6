"""What `tfbig predict` asks of the kinds of networks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from tfbig.cli.input_kinds import SLIDES, InputKind
from tfbig.cli.predictors import results
from tfbig.cli.settings.slide_settings import PredictSettings
from tfbig.sources.resolution import Mpp


class Predictor(ABC):
    """A trained network of one kind, and what is written of its predictions.

    A subclass is made from the settings of the command, the model, and the settings of its run or an empty dict.

    Attributes:
        inputs: What it predicts.
        row: Column of `predictions.csv` that names an input.
        folder: Folder of the results.
        settings: Settings of the command, with every default filled in.
        pixels: Micrometres along rows and columns of a pixel of what was read, by slide, where that is not the
            resolution of the settings.
    """

    inputs: ClassVar[InputKind] = SLIDES
    row: ClassVar[str] = "slide"

    def __init__(self, settings: PredictSettings) -> None:
        self.folder = Path(settings.out)
        self.settings = settings
        self.pixels: dict[Path, Mpp | None] = {}

    @abstractmethod
    def predict(self, path: Path, slide: Any) -> str:
        """Predict an input, write the results, and return a line to print.

        `slide` is None for inputs that are no slides.
        """

    def finished(self, path: Path) -> bool:
        """Tell whether an input is done. Its row is written last, where a subclass says nothing else."""
        return results.has_row(self.folder, path, self.row)

    def write_row(self, row: Mapping[str, Any]) -> None:
        """Write the row of an input into `predictions.csv`, in place of an older one."""
        results.write_row(self.folder, row)
