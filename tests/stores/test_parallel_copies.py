"""Copies by several threads equal copies by one, whatever the shapes and the number of threads."""

from __future__ import annotations

import numpy as np
import pytest

from tfbig.stores import parallel_copies


@pytest.fixture(params=[1, 3])
def parts(request, monkeypatch):
    """Copy with some threads, and note the rows of every part."""
    seen: list[int] = []
    monkeypatch.setattr(parallel_copies, "THREADS", request.param)
    monkeypatch.setattr(parallel_copies, "LEAST_BYTES", 64)
    add = parallel_copies._add

    def noted(target, source):
        seen.append(source.shape[1])
        add(target, source)

    monkeypatch.setattr(parallel_copies, "_add", noted)
    return request.param, seen


@pytest.mark.parametrize("shape", [(1, 7, 5, 4), (2, 9, 4), (1, 1, 64, 8), (1, 0, 5, 4)])
def test_equals_one_copy(parts, shape):
    random = np.random.default_rng(0)
    source, target = random.random(shape), random.random((shape[0], shape[1] + 2, *shape[2:]))
    expected = target.copy()
    parallel_copies.assign(target[:, 1:-1], source)
    expected[:, 1:-1] = source
    np.testing.assert_array_equal(target, expected)
    parallel_copies.add(target[:, 1:-1], source)
    expected[:, 1:-1] += source
    np.testing.assert_array_equal(target, expected)


def test_rows_are_shared_among_threads(parts):
    threads, seen = parts
    parallel_copies.add(np.zeros((1, 7, 5, 4)), np.ones((1, 7, 5, 4)))
    assert sorted(seen) == ([7] if threads == 1 else [2, 2, 3])


def test_few_bytes_are_copied_by_one_thread(parts):
    _, seen = parts
    parallel_copies.add(np.zeros((1, 7, 1, 1)), np.ones((1, 7, 1, 1)))
    assert seen == [7]


def test_errors_of_a_part_are_raised(parts):
    with pytest.raises(ValueError, match="broadcast"):
        parallel_copies.assign(np.zeros((1, 9, 5, 4)), np.ones((1, 9, 6, 4)))


def test_sums_beyond_the_largest_number_are_infinite_without_a_warning():
    target = np.full((1, 3, 2), 60000, np.float16)
    parallel_copies.add(target, target.copy())
    assert np.isinf(target).all()
