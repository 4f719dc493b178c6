"""Write the report of a run again: one HTML file that opens without a network connection."""

from tfbig.cli import paths
from tfbig.cli import settings as command_line
from tfbig.results import report


def add_flags(add):
    """Add the flags of this command."""
    add("folder", metavar="FOLDER", help="results folder of train, evaluate, tile or predict")
    add(
        "--max-slides",
        type=command_line.count,
        default=report.MAX_VIEWS,
        help="most slides with a zoomable view; each takes a few megabytes (default: %(default)s)",
    )


def run(settings):
    """Write the report and print its path."""
    paths.check_argument("folder", settings.folder)
    print(f"report: {report.write_report(settings.folder, settings.max_slides)}")
    return 0
