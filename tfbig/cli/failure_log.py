"""Files that cannot be read during a run: reported, listed in `failed.csv`, and left out."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from tfbig import SourceError
from tfbig.cli import messages
from tfbig.cli.data.run_data import Data, items_of
from tfbig.errors import one_line
from tfbig.results import run_folder

Item = TypeVar("Item")
Result = TypeVar("Result")
READ = 1 << 24
"""Bytes that are read at once to find out whether an item can be read."""


class FailureLog:
    """Report a file that became unreadable: once on standard error, and in `failed.csv` of the run folder.

    All workers share the folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.reported: set[str] = set()

    def __call__(self, error: Exception) -> None:
        """Report an error; `__call__` is what `Loop` expects."""
        reason = one_line(messages.in_flags(error))
        item = reason.partition(": ")[0]
        if item in self.reported:
            return
        self.reported.add(item)
        print(f"skipped {reason}", file=sys.stderr)
        run_folder.save_failure(self.folder, item, reason.removeprefix(f"{item}: "))


def results_of(
    items: Iterable[Item], work: Callable[[Item], Result], folder: Path, strict: bool
) -> Iterator[tuple[Item, Result]]:
    """Yield each item with the result of `work`; an item that cannot be read is reported and left out.

    With `strict`, such an item is an error.

    Raises:
        SourceError: An item cannot be read and `strict` is set, or no item can be read.
    """
    report, last, done = FailureLog(folder), None, 0
    for item in items:
        try:
            result = work(item)
        except SourceError as error:
            if strict:
                raise
            report(error)
            last = error
        else:
            done += 1
            yield item, result
    if last is not None and not done:
        raise last


def write_readable(write: Callable[[Data], None], data: Data, folder: Path, strict: bool) -> None:
    """Write the results of a run; if items cannot be read, report them and write the results without them.

    With `strict`, such an item is an error.

    Raises:
        SourceError: An item cannot be read and `strict` is set, or a split has no other, or a file cannot be written.
    """
    try:
        write(data)
    except SourceError:
        if strict:
            raise
        report = FailureLog(folder)
        rest = data.mapped(lambda part: _readable(part, report))
        left = ((items_of(rest.sets[split]), items_of(part)) for split, part in data.sets.items())
        if not report.reported or any(before and not after for after, before in left):
            raise
        write(rest)


def _readable(part: Any, report: FailureLog) -> Any:
    """The split without the items that cannot be read, which are reported."""
    errors = [_reading_error(item) for item in items_of(part)]
    for error in filter(None, errors):
        report(error)
    kept = [number for number, error in enumerate(errors) if error is None]
    items = tuple(items_of(part)[number] for number in kept)
    named = zip(items_of(part), errors, strict=True)
    failed = (
        *part.failed,
        *((item.name, messages.in_flags(error)) for item, error in named if error),
    )
    return replace(part, labels=part.labels[kept], failed=failed, **{part.ITEMS: items})


def _reading_error(item: Any) -> SourceError | None:
    """The first error of reading all of a bag or an image, or None."""
    rows = max(READ // max(item.nbytes // item.shape[0], 1), 1)
    try:
        for start in range(0, item.shape[0], rows):
            item.read(start, min(start + rows, item.shape[0]))
    except SourceError as error:
        return error
    return None
