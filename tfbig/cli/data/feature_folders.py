"""Files of features in the folders of `tfbig features`, TRIDENT, CLAM and STAMP, by the name of their slide."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Final

from tfbig import SourceError
from tfbig.cli.data.slide_folders import SlideFiles

TABLE: Final = "features.csv"
"""Table that `tfbig features` writes."""
SUFFIXES: Final = (".h5", ".hdf5", ".pt", ".npy")
"""Kinds of files of features; of one slide, the first is used: files of CLAM with coordinates are `.h5`."""
KINDS: Final = ("h5_files", "pt_files")
"""Folders in which CLAM keeps the same features in two formats."""
NO_FEATURES: Final = "patches"
"""Folder of the coordinates of CLAM and TRIDENT."""
OF_SLIDES: Final = "slide_features_"
"""Start of the names of the folders in which TRIDENT keeps one vector for each slide."""


class FeatureFiles(SlideFiles):
    """Files of features of a folder and its subfolders by the name of their slide; listed on first use.

    The folder is one such as `features_uni_v1` of TRIDENT, that with `h5_files` and `pt_files` of CLAM, or one of
    STAMP.
    """

    FLAG = "--features"
    ANYWHERE = True

    @cached_property
    def paths(self) -> list[Path]:
        """The files."""
        return [path for path in sorted(self.folder.rglob("*")) if self._has_features(path)]

    def only(self, paths: list[Path], slide: str) -> Path:
        """Choose one file among those of a slide: of the same features in two formats, that with coordinates.

        Raises:
            SourceError: They are files of several encoders.
        """
        places = {p.parent.parent if p.parent.name in KINDS else p.parent for p in paths}
        by_kind = sorted(paths, key=lambda path: SUFFIXES.index(path.suffix.lower()))
        best = [path for path in by_kind if path.suffix == by_kind[0].suffix]
        if len(places) > 1 or len(best) > 1:
            raise SourceError(
                f"{paths[0]} and {paths[1]} are both features of '{slide}'. Name the folder of one encoder with "
                "--features."
            )
        return best[0]

    def _has_features(self, path: Path) -> bool:
        """Tell whether a file can hold features; results and files that are being written are left out."""
        *folders, name = path.relative_to(self.folder).parts
        left_out = any(
            part.startswith((".", OF_SLIDES)) or part == NO_FEATURES for part in (*folders, name)
        )
        return path.suffix.lower() in SUFFIXES and not left_out and path.is_file()
