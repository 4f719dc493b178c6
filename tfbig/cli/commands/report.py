"""Write the report of a run again: one HTML file that opens without a network connection."""

from __future__ import annotations

from tfbig.cli.settings.commands import ReportSettings
from tfbig.results import report


def run(settings: ReportSettings) -> int:
    """Write the report and print its path."""
    print(f"report: {report.write_report(settings.folder, settings.max_slides)}")
    return 0
