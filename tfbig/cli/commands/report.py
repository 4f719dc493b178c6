"""Write the report of a run again: one HTML file that opens without a network connection."""

from __future__ import annotations

from pathlib import Path

from tfbig.cli.settings import training
from tfbig.cli.settings.commands import ReportSettings
from tfbig.errors import SourceError
from tfbig.results import report, run_folder
from tfbig.system import output_folder


def run(settings: ReportSettings) -> int:
    """Write the report and print its path.

    Raises:
        SourceError: The folder is none of results, or holds a report of somebody else.
    """
    _check(Path(settings.folder))
    print(f"report: {report.write_report(settings.folder, settings.max_slides, training.in_use)}")
    return 0


def _check(folder: Path) -> None:
    """Check that a folder is one of results; a copy without hidden files has no record."""
    if output_folder.is_claimed(folder):
        return
    if not (folder / run_folder.VERSIONS).is_file():
        raise SourceError(
            f"{folder}: is not a folder that tfbig wrote: it has neither {output_folder.RECORD} nor "
            f"{run_folder.VERSIONS}. Check the path."
        )
    if (folder / report.NAME).exists():
        raise SourceError(
            f"{folder / report.NAME}: no record says that tfbig wrote it. Move it elsewhere; then it is written again."
        )
