"""Table of files of features, `features.csv`: a row for each slide, from which `--bags features` trains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tfbig.cli.data import cohort
from tfbig.cli.data.feature_folders import TABLE
from tfbig.results import run_folder
from tfbig.sources.bags import feature_files
from tfbig.sources.names import title_of
from tfbig.sources.table import Row
from tfbig.system.output_folder import file_in
from tfbig.units import counted

GIVEN = ("case_id", "label", "split")
"""Columns of the tables of slides that the table of features gets too."""


class FeatureTable:
    """Rows of the slides of a command, in the folder of their features.

    `slides` are the slides, folders and tables of slides that the command got.

    Attributes:
        folder: Folder of the features.
        path: Path of the table.

    Raises:
        SourceError: A table of slides cannot be read.
    """

    def __init__(self, folder: str | Path, slides: Sequence[str]) -> None:
        self.folder = Path(folder)
        self.path = self.folder / TABLE
        tables = [Path(name) for name in slides if cohort.is_table(name)]
        rows = [row for table in tables for row in cohort.slides_of_table(table, says=False)]
        self._given = {title_of(row["path"]): row for row in rows}
        self._columns = [name for name in GIVEN if name != "split" or _in_all(name, rows)]
        self._saved = {row.get("path") for row in self.rows()}

    def file(self, path: Path) -> Path:
        """The file of the features of a slide."""
        return file_in(self.folder, f"{title_of(path)}.h5")

    def has(self, path: Path) -> bool:
        """Tell whether a slide has a file, and a row that was there at the start."""
        file = self.file(path)
        return file.name in self._saved and file.exists()

    def add(self, path: Path) -> dict[str, Any]:
        """Write the row of a slide whose file is complete, and return it."""
        file, name = self.file(path), title_of(path)
        given = self._given.get(name, Row({}))
        written = feature_files.read_written(file)
        seconds = float(written.attributes.get("seconds", 0.0))
        row = {
            "slide_id": given.get("slide_id", name),
            **{column: given.get(column) or "" for column in self._columns},
            "path": file.name,
            "tiles": written.tiles,
            "width": written.width,
            "seconds": round(seconds, 3),
        }
        columns = next(iter(self.rows()), row)
        row = {column: row.get(column, "") for column in columns}
        run_folder.replace_row(self.path, "path", file.name, row)
        return row

    def rows(self) -> list[dict[str, str]]:
        """Read the rows of the table, without those of other commands that run at the same time and come later."""
        return run_folder.read_rows(self.path)


def _in_all(name: str, rows: Sequence[Mapping[str, Any]]) -> bool:
    """Tell whether there are rows, and all have a value in a column."""
    return bool(rows) and all(row.get(name) for row in rows)


def totals(rows: Sequence[Mapping[str, str]]) -> str:
    """Sum the slides, tiles and seconds of a table, in words."""
    tiles = sum(int(row["tiles"]) for row in rows)
    seconds = sum(float(row["seconds"]) for row in rows)
    rate = f", {tiles / seconds:.3g} tiles/s" if seconds else ""
    return f"{counted(len(rows), 'slide')}, {tiles} tiles, {seconds:.1f} s{rate}"
