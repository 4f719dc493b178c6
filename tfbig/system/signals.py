"""Ends long work on request, after the strip that it is at: Ctrl-C, SIGTERM of a scheduler, or `request`.

A step of a large image takes minutes to hours inside TensorFlow, and meanwhile Python handles no signal in its main
thread. So a thread of its own waits for signals, and what reports the progress of a step asks whether to go on.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tfbig.errors import Stopped

_asked: int | None = None
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_heard = _held = False


def request(number: int = signal.SIGINT) -> None:
    """Asks running work to end, as the signal of this number does."""
    global _asked
    _asked = number


def check() -> None:
    """Ends the work that calls this if it was asked to.

    Raises:
        Stopped: it was.
    """
    if _asked is not None and not _held:
        raise Stopped(f"stopped by {signal.Signals(_asked).name}")


@contextmanager
def held() -> Iterator[None]:
    """Within it `check` ends nothing: for work of which others wait for every part."""
    global _held
    _held = True
    try:
        yield
    finally:
        _held = False


def asked() -> int | None:
    """The signal that asked to end, or None."""
    return _asked


def exit_code() -> int:
    """What a shell reports of a process that was ended so: 130 for Ctrl-C, 143 for SIGTERM."""
    return 128 + (signal.SIGINT if _asked is None else _asked)


@contextmanager
def on_signals(told: str) -> Iterator[None]:
    """Within it, Ctrl-C and SIGTERM ask running work to end; a second one ends the process at once.

    Outside the main thread, where Python sets no handlers, it does nothing.

    Args:
        told: what the first signal prints.
    """
    global _asked, _heard
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    before = {number: signal.signal(number, _nothing) for number in _SIGNALS}
    _heard = True
    woken = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    watcher = threading.Thread(target=_watch, args=(reader, told), daemon=True)
    watcher.start()
    try:
        yield
    finally:
        _heard = False
        signal.set_wakeup_fd(woken)
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(writer)
        watcher.join()
        os.close(reader)
        _asked = None


@contextmanager
def at_once() -> Iterator[None]:
    """Within it, Ctrl-C ends the process at once; for what holds Python's lock while it waits.

    After it, signals ask to end again, whatever handlers a library has set: making a cluster, TensorFlow sets one for
    SIGTERM, so that this signal is not heeded until all workers are there.
    """
    if not _heard or threading.current_thread() is not threading.main_thread():
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
    """What a handler does: a signal that has one wakes the thread that waits for them."""


def _watch(reader: int, told: str) -> None:
    """Waits for signals, whose numbers come as bytes, until nobody writes any more."""
    while found := os.read(reader, 1):
        if found[0] not in _SIGNALS:
            continue
        if asked() is not None:
            os._exit(exit_code())
        request(found[0])
        print(f"\n{told}", file=sys.stderr, flush=True)
