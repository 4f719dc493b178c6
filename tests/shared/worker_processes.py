"""Workers of distributed training as processes, and their results."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from contextlib import ExitStack

import numpy as np
import pytest
from samples import ENVIRONMENT, PROGRAMS

SETTINGS = {"model": "streamed", "norm": "none", "accumulate": 1, "epochs": 2, "images": 6}
PATIENCE = 300
"""Seconds after which a process that should have ended is a failure: one that waits for a lost worker."""


def free_ports(count):
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("localhost", 0))
        return [each.getsockname()[1] for each in sockets]


def with_defaults(out, settings):
    return {"strategy": "none", "batch": 1} | SETTINGS | settings | {"out": str(out)}


def start(out, ports=(), index=0, **settings):
    """Start a worker as a process."""
    out.mkdir(exist_ok=True)
    environment = dict(ENVIRONMENT)
    if ports:
        workers = [f"localhost:{port}" for port in ports]
        task = {"type": "worker", "index": index}
        environment["TF_CONFIG"] = json.dumps({"cluster": {"worker": workers}, "task": task})
    text = json.dumps(with_defaults(out, settings))
    command = [sys.executable, str(PROGRAMS / "worker.py"), text]
    return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)


def ended(processes):
    """Wait for processes, and return their exit ends and the end of their error output."""
    results = []
    for process in processes:
        with process:
            _, errors = process.communicate(timeout=PATIENCE)
        results.append((process.returncode, errors[-3000:]))
    return results


def run(out, count=1, **settings):
    """Train to the end on a number of workers."""
    several = settings.get("strategy") == "multiworker"
    ports = free_ports(count) if several else ()
    for code, errors in ended([start(out, ports, i, **settings) for i in range(count)]):
        assert code == 0, errors


def results(out, worker=0):
    with np.load(out / f"weights-{worker}.npz") as file:
        weights = [file[name] for name in file.files]
    return weights, json.loads((out / f"rows-{worker}.json").read_text())


def assert_equal(actual, expected, rtol=1e-10, draws=False):
    (weights, rows), (others, expected_rows) = actual, expected
    assert len(weights) == len(others)
    for a, b in zip(weights, others, strict=True):
        if not (draws and a.dtype.kind == "i"):  # each of two replicas draws half as many numbers
            scale = max(abs(b).max(initial=0), 1)
            np.testing.assert_allclose(a, b, rtol=0, atol=rtol * scale)
    for row, other in zip(rows, expected_rows, strict=True):
        assert row == pytest.approx(other, rel=rtol)
