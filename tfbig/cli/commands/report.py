"""Writes the report of a run again: one HTML file that opens without a network."""

from tfbig.cli import settings as command_line
from tfbig.results import report


def add_flags(add):
    """Flags of this command."""
    add("folder", metavar="FOLDER", help="of a run of train, evaluate, tile or predict")
    add(
        "--max-slides",
        type=command_line.count,
        default=report.MAX_VIEWS,
        help="that can be zoomed; each takes some megabytes (default: %(default)s)",
    )


def run(settings):
    """Writes it; says where."""
    print(f"report: {report.write_report(settings.folder, settings.max_slides)}")
    return 0
