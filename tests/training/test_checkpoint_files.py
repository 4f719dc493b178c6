"""Checkpoints: two kept, each whole or refused, and the one before used."""

import os
import subprocess

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tfbig
from tfbig.training.checkpoint_files import Checkpoints, Refused

ARRAYS = {
    "0 kernel": np.arange(12, dtype=np.float32).reshape(3, 4),
    "1 count": np.array(7, np.int64),
    "2 seed": np.array([1, 2], np.uint32),
    "3 empty": np.zeros((0, 3)),
    "4 turned": np.arange(6.0).reshape(2, 3).T,
}


@pytest.fixture
def told():
    return []


@pytest.fixture
def kept(tmp_path, told):
    return Checkpoints(tmp_path / "checkpoints", "a run", told.append)


def write(kept, number):
    return kept.write(number, ARRAYS | {"1 count": np.array(number)}, {"epoch": number // 10})


def test_what_is_written_is_read(kept):
    kept.write(3, ARRAYS, {"epoch": 2, "history": [{"loss": 0.1}]})
    found = kept.newest()
    assert found.values == {"epoch": 2, "history": [{"loss": 0.1}]}
    assert found.arrays.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        assert found.arrays[name].dtype == array.dtype
        np.testing.assert_array_equal(found.arrays[name], array, strict=True)


def test_two_are_kept(kept):
    for number in (1, 2, 10, 11):
        write(kept, number)
    names = [path.name for path in kept.paths()]
    assert names == ["step-000000011.safetensors", "step-000000010.safetensors"]
    assert sorted(p.name for p in kept.folder.iterdir()) == sorted(names)
    assert kept.newest().arrays["1 count"] == 11


def test_none_was_written(kept):
    assert kept.newest() is None


def test_a_torn_one_is_refused_and_the_one_before_used(kept, told):
    write(kept, 1)
    last = write(kept, 2)
    whole = last.read_bytes()
    for size in (0, 5, 100, len(whole) // 2, len(whole) - 1):
        last.write_bytes(whole[:size])
        assert kept.newest().arrays["1 count"] == 1
        assert told.pop().startswith(f"{last} is not used: torn or no checkpoint")
        assert not told


def test_every_byte_counts(kept, told):
    write(kept, 1)
    last = write(kept, 2)
    whole = last.read_bytes()

    @given(st.integers(0, len(whole) - 1), st.integers(1, 255))
    def changed(place, other):
        data = bytearray(whole)
        data[place] ^= other
        last.write_bytes(data)
        found = kept.newest()
        # What JSON reads alike, as a blank more in the padding of the header, does not count.
        assert found.arrays["1 count"] == 1 or all(
            np.array_equal(found.arrays[n], a) for n, a in ARRAYS.items() if n != "1 count"
        )
        if found.arrays["1 count"] == 1:
            assert told.pop().startswith(f"{last} is not used: ")
        else:
            assert found.arrays["1 count"] == 2
            assert found.values == {"epoch": 0}

    changed()


def test_those_of_another_run_or_program_are_refused(kept, told, tmp_path):
    write(kept, 1)
    other = Checkpoints(tmp_path / "other", "another run")
    other.write(5, ARRAYS, {}).replace(kept.folder / "step-000000005.safetensors")
    assert kept.newest().path.name == "step-000000001.safetensors"
    assert "is of another run (another run, this is a run); the one before is" in told[0]
    from safetensors.numpy import save_file

    save_file({"a": np.ones(3)}, kept.folder / "step-000000006.safetensors")
    assert kept.newest().path.name == "step-000000001.safetensors"
    assert "step-000000006.safetensors is not used: is no 'tfbig checkpoint 1'" in told[1]


def test_one_that_does_not_fit_is_refused(kept, told):
    write(kept, 1)
    write(kept, 2)

    def fits(found):
        if found.arrays["1 count"] == 2:
            raise Refused("has another kernel")

    assert kept.newest(fits).arrays["1 count"] == 1
    assert "is not used: has another kernel" in told[0]


def test_those_that_were_refused_do_not_count_among_the_two(kept, told):
    write(kept, 1)
    for number in (7, 8):
        (kept.folder / f"step-{number:09d}.safetensors").write_bytes(b"nothing")
    assert kept.newest().arrays["1 count"] == 1
    for number in (2, 3):
        write(kept, number)
    again = Checkpoints(kept.folder, "a run", told.append)
    assert again.newest().arrays["1 count"] == 3
    for number in (4, 8):  # the latter takes the place of one that was torn
        write(again, number)
    assert [path.name[11:14] for path in again.paths()] == ["008", "007", "004"]
    assert kept.newest().arrays["1 count"] == 8


def test_if_none_can_be_used_all_are_named(kept):
    for number in (1, 2):
        write(kept, number).write_bytes(b"nothing")
    expected = r"none of 2 checkpoints can be used. .*2.safetensors: torn.*1.safetensors: torn.* without --resume"
    with pytest.raises(tfbig.SourceError, match=expected):
        kept.newest()


def test_a_file_that_was_not_finished_is_none(kept):
    """As a process leaves it that is killed while it writes."""
    whole = write(kept, 1).read_bytes()
    (kept.folder / ".part-step-000000002.safetensors").write_bytes(whole[:50])
    assert kept.newest().arrays["1 count"] == 1
    write(kept, 2)
    assert kept.newest().arrays["1 count"] == 2


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    kept = Checkpoints(tmp_path / "file", "a run")
    with pytest.raises(tfbig.SourceError, match="checkpoint cannot be written"):
        write(kept, 1)


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 1 MB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("a file system cannot be mounted here")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_a_full_disk_leaves_those_before(small_disk):
    kept = Checkpoints(small_disk / "checkpoints", "a run")
    small, large = {"a": np.ones(40_000)}, {"a": np.ones(100_000)}
    for number in (1, 2):
        kept.write(number, small, {})
    with pytest.raises(tfbig.SourceError, match=r"No space left.*make room.*--resume"):
        kept.write(3, large, {})
    assert [p.name for p in kept.folder.iterdir() if p.name.startswith(".")] == []
    np.testing.assert_array_equal(kept.newest().arrays["a"], small["a"])
    assert len(kept.paths()) == 2
