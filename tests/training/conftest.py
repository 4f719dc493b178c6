"""Fixtures of training tests."""

import pytest
import worker
from worker_processes import with_defaults


@pytest.fixture
def run_here(float64):
    """Train to the end on one worker, in the process of the test."""

    def run(out, **settings):
        out.mkdir(exist_ok=True)
        worker.main(with_defaults(out, settings))

    return run
