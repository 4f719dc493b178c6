"""Write the report of a run again: one HTML file that opens without a network connection."""

from __future__ import annotations

from pathlib import Path

from tfbig.cli.settings.commands import ReportSettings
from tfbig.errors import SourceError
from tfbig.results import report, run_folder
from tfbig.system import output_folder


def run(settings: ReportSettings) -> int:
    """Write the report and print its path.

    Raises:
        SourceError: The folder is none of results, or holds a report of somebody else.
    """
    folder = Path(settings.folder)
    if not output_folder.is_claimed(
        folder
    ):  # a copy without hidden files, or of an earlier version
        if not (folder / run_folder.VERSIONS).is_file():
            raise SourceError(
                f"{folder}: is not a folder that tfbig wrote: it has neither {output_folder.RECORD} nor "
                f"{run_folder.VERSIONS}. Check the path."
            )
        if (folder / report.NAME).exists():
            raise SourceError(
                f"{folder / report.NAME}: no record says that tfbig wrote it. Move it elsewhere; then it is written "
                "again."
            )
    print(f"report: {report.write_report(settings.folder, settings.max_slides)}")
    return 0
