"""Graceful stop after the current strip, on Ctrl-C, on SIGTERM (as schedulers send it) or on `request`.

A step on a large image spends minutes to hours inside TensorFlow, and meanwhile Python runs no signal handler in the
main thread. So a separate thread waits for signals, and the code that reports the progress of a step checks whether to
stop.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tfbig.errors import Stopped

_requested: int | None = None
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_handling = _deferred = False


def request(number: int = signal.SIGINT) -> None:
    """Request the running work to stop, as a signal does.

    Args:
        number: Number of the signal.
    """
    global _requested
    _requested = number


def check() -> None:
    """Stop the calling work if this was requested.

    Raises:
        Stopped: A stop was requested.
    """
    if _requested is not None and not _deferred:
        raise Stopped(f"stopped by {signal.Signals(_requested).name}")


@contextmanager
def deferred() -> Iterator[None]:
    """Let `check` pass in this context, for work that other workers wait for."""
    global _deferred
    _deferred = True
    try:
        yield
    finally:
        _deferred = False


def requested() -> int | None:
    """Return the signal that requested a stop, or None."""
    return _requested


def exit_code() -> int:
    """Return the exit code that a shell reports: 130 for Ctrl-C, 143 for SIGTERM."""
    return 128 + (signal.SIGINT if _requested is None else _requested)


@contextmanager
def on_signals(message: str) -> Iterator[None]:
    """Turn Ctrl-C and SIGTERM into requests to stop; a second signal exits at once.

    Outside the main thread, where Python cannot set handlers, this does nothing.

    Args:
        message: Line to print on the first signal.
    """
    global _requested, _handling
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    previous_handlers = {number: signal.signal(number, _nothing) for number in _SIGNALS}
    _handling = True
    previous_fd = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    watcher = threading.Thread(target=_watch, args=(reader, message), daemon=True)
    watcher.start()
    try:
        yield
    finally:
        _handling = False
        signal.set_wakeup_fd(previous_fd)
        for number, handler in previous_handlers.items():
            signal.signal(number, handler)
        os.close(writer)
        watcher.join()
        os.close(reader)
        _requested = None


@contextmanager
def default_handlers() -> Iterator[None]:
    """Let signals end the process at once in this context, for calls that wait while they hold Python's lock.

    Afterwards signals are requests to stop again, whatever handlers a library has set: when it creates a cluster,
    TensorFlow sets a handler for SIGTERM, so that this signal has no effect until all workers are connected.
    """
    if not _handling or threading.current_thread() is not threading.main_thread():
        yield
        return
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    try:
        yield
    finally:
        for number in _SIGNALS:
            signal.signal(number, _nothing)


def _nothing(*_: object) -> None:
    """Handle a signal by doing nothing: that there is a handler wakes the watching thread."""


def _watch(reader: int, message: str) -> None:
    """Read signal numbers, one byte each, until the pipe is closed."""
    while data := os.read(reader, 1):
        if data[0] not in _SIGNALS:
            continue
        if requested() is not None:
            os._exit(exit_code())
        request(data[0])
        print(f"\n{message}", file=sys.stderr, flush=True)
