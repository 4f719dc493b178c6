"""Slides of a command as tasks of a Dask cluster, on one machine or many."""

from argparse import Namespace
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from tfbig import SourceError
from tfbig.system import signals


def process_slides(settings, make_work, process_slide, tasks):
    """Yield `(path, line, reason, seconds)` of every slide as it ends.

    If a worker dies, another one processes its slide, at most three times.

    Args:
        settings: Settings of the command; `dask` is the address of a scheduler, or "local".
        make_work: Function from the settings to the work on a slide, and more; each worker calls it once.
        process_slide: Function from settings, work, path and pixel size to line, reason and seconds.
        tasks: List of `(path, micrometres per pixel or None)`.

    Raises:
        SourceError: Dask is not installed, or the scheduler does not answer.
    """
    if find_spec("distributed") is None:
        raise SourceError("--dask: Dask is not installed. Run pip install 'tfbig[dask]'.")
    from distributed import Client, wait

    address = None if settings.dask == "local" else settings.dask
    try:
        client = Client(address, timeout=10)
    except (OSError, ValueError) as error:
        raise SourceError(
            f"--dask {settings.dask}: the scheduler does not answer ({error}). Check the address."
        ) from error
    with client:
        values = tuple(sorted((k, _frozen(v)) for k, v in vars(settings).items()))
        futures = {
            client.submit(
                _process_slide,
                make_work,
                process_slide,
                values,
                str(path.resolve()),
                mpp,
                pure=False,
            ): path
            for path, mpp in tasks
        }
        while futures:
            signals.check()
            with suppress(TimeoutError):  # so that a signal is noticed before the next slide ends
                wait(list(futures), timeout=0.5, return_when="FIRST_COMPLETED")
            for future in [future for future in futures if future.done()]:
                yield futures.pop(future), *_result(future)
                future.release()


def _result(future):
    from distributed import KilledWorker

    try:
        return future.result()
    except KilledWorker as error:
        return None, f"the worker died: {' '.join(str(error).split())}", 0.0


def _process_slide(make_work, process_slide, values, path, mpp):
    """Process a slide, in a process of Dask."""
    settings, work = _cached_work(make_work, values)
    return process_slide(settings, work, Path(path), mpp)


@cache
def _cached_work(make_work, values):
    settings = Namespace(**{k: list(v) if isinstance(v, tuple) else v for k, v in values})
    return settings, make_work(settings)[0]


def _frozen(value):
    return tuple(value) if isinstance(value, list) else value
