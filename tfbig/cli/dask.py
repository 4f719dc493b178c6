"""Slides of a command as tasks of a Dask cluster: on the cores of a machine, or on many machines."""

from argparse import Namespace
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from tfbig import SourceError
from tfbig.system import signals


def each(settings, make, one, tasks):
    """As they end: `(path, line, reason, seconds)` of every slide.

    A worker that dies has its slide done by another one, three times at most.

    Args:
        settings: of the command; `dask` is the address of a scheduler, or "local".
        make: from settings to the work on a slide, and more; each worker calls it once.
        one: from settings, work, path and size of a pixel to line, reason and seconds.
        tasks: `(path, micrometres per pixel or None)`.

    Raises:
        SourceError: Dask is not installed, or there is no such scheduler.
    """
    if find_spec("distributed") is None:
        raise SourceError("--dask: is not installed. Run pip install 'tfbig[dask]'.")
    from distributed import Client, wait

    address = None if settings.dask == "local" else settings.dask
    try:
        client = Client(address, timeout=10)
    except (OSError, ValueError) as error:
        raise SourceError(f"--dask {settings.dask}: no scheduler answers ({error}).") from error
    with client:
        values = tuple(sorted((k, _frozen(v)) for k, v in vars(settings).items()))
        waiting = {
            client.submit(_one, make, one, values, str(path.resolve()), mpp, pure=False): path
            for path, mpp in tasks
        }
        while waiting:
            signals.check()
            with suppress(TimeoutError):  # or it would not end before the next slide does
                wait(list(waiting), timeout=0.5, return_when="FIRST_COMPLETED")
            for future in [future for future in waiting if future.done()]:
                yield waiting.pop(future), *_result(future)
                future.release()


def _result(future):
    from distributed import KilledWorker

    try:
        return future.result()
    except KilledWorker as error:
        return None, f"its worker died: {' '.join(str(error).split())}", 0.0


def _one(make, one, values, path, mpp):
    """The work on a slide, in a process of Dask."""
    settings, work = _made(make, values)
    return one(settings, work, Path(path), mpp)


@cache
def _made(make, values):
    settings = Namespace(**{k: list(v) if isinstance(v, tuple) else v for k, v in values})
    return settings, make(settings)[0]


def _frozen(value):
    return tuple(value) if isinstance(value, list) else value
