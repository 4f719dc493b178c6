"""Slides of a command as tasks of a Dask cluster, on one machine or many."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tfbig import SourceError
from tfbig.system import signals


def process_slides(
    settings: Any,
    make_work: Callable[[Any], Any],
    process_slide: Callable[[Any, Path, float | None], Any],
    tasks: Sequence[tuple[Path, float | None]],
    failure: Callable[[str], Any],
) -> Iterator[tuple[Path, Any]]:
    """Yield the path and the outcome of every slide as it ends.

    Each worker calls `make_work` once, with the settings; `dask` in these is the address of a scheduler, or
    "local". `tasks` are `(path, micrometres per pixel or None)`. `failure` turns a reason into the outcome of a
    slide that no worker survived.

    If a worker dies, another one processes its slide, at most three times.

    Raises:
        SourceError: Dask is not installed, or the scheduler does not answer.
    """
    with _client(settings.dask) as client:
        futures = {
            client.submit(
                _process_slide,
                make_work,
                process_slide,
                settings,
                str(path.resolve()),
                mpp,
                pure=False,
            ): path
            for path, mpp in tasks
        }
        yield from _as_they_end(futures, failure)


def _client(dask: str) -> Any:
    """Connect to a scheduler, or start workers on this machine for "local".

    Raises:
        SourceError: Dask is not installed, or the scheduler does not answer.
    """
    if find_spec("distributed") is None:
        raise SourceError("--dask: Dask is not installed. Run pip install 'tfbig[dask]'.")
    from distributed import Client

    try:
        return Client(None if dask == "local" else dask, timeout=10)
    except (OSError, ValueError) as error:
        raise SourceError(
            f"--dask {dask}: the scheduler does not answer ({error}). Check the address."
        ) from error


def _as_they_end(
    futures: dict[Any, Path], failure: Callable[[str], Any]
) -> Iterator[tuple[Path, Any]]:
    from distributed import wait

    while futures:
        signals.check()
        with suppress(TimeoutError):  # so that a signal is noticed before the next slide ends
            wait(list(futures), timeout=0.5, return_when="FIRST_COMPLETED")
        for future in [future for future in futures if future.done()]:
            yield futures.pop(future), _outcome(future, failure)
            future.release()


def _outcome(future: Any, failure: Callable[[str], Any]) -> Any:
    from distributed import KilledWorker

    try:
        return future.result()
    except KilledWorker as error:
        return failure(f"the worker died: {' '.join(str(error).split())}")


def _process_slide(
    make_work: Callable[[Any], Any],
    process_slide: Callable[[Any, Path, float | None], Any],
    settings: Any,
    path: str,
    mpp: float | None,
) -> Any:
    """Process a slide, in a process of Dask."""
    return process_slide(_cached_work(make_work, settings), Path(path), mpp)


@cache
def _cached_work(make_work: Callable[[Any], Any], settings: Any) -> Any:
    return make_work(settings)
