"""Checkpoint files: two are retained, damaged ones are refused and the previous one is used."""

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
def messages():
    return []


@pytest.fixture
def checkpoints(tmp_path, messages):
    return Checkpoints(tmp_path / "checkpoints", "a run", messages.append)


def write(checkpoints, number):
    return checkpoints.write(
        number, ARRAYS | {"1 count": np.array(number)}, {"epoch": number // 10}
    )


def test_round_trip(checkpoints):
    checkpoints.write(3, ARRAYS, {"epoch": 2, "history": [{"loss": 0.1}]})
    checkpoint = checkpoints.newest()
    assert checkpoint.values == {"epoch": 2, "history": [{"loss": 0.1}]}
    assert checkpoint.arrays.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        assert checkpoint.arrays[name].dtype == array.dtype
        np.testing.assert_array_equal(checkpoint.arrays[name], array, strict=True)


def test_two_are_retained(checkpoints):
    for number in (1, 2, 10, 11):
        write(checkpoints, number)
    names = [path.name for path in checkpoints.paths()]
    assert names == ["step-000000011.safetensors", "step-000000010.safetensors"]
    assert sorted(p.name for p in checkpoints.folder.iterdir()) == sorted(names)
    assert checkpoints.newest().arrays["1 count"] == 11


def test_newest_without_checkpoints(checkpoints):
    assert checkpoints.newest() is None


def test_truncated_checkpoint_is_refused(checkpoints, messages):
    write(checkpoints, 1)
    last = write(checkpoints, 2)
    whole = last.read_bytes()
    for size in (0, 5, 100, len(whole) // 2, len(whole) - 1):
        last.write_bytes(whole[:size])
        assert checkpoints.newest().arrays["1 count"] == 1
        assert messages.pop().startswith(f"{last} is not used: damaged or not a checkpoint")
        assert not messages


def test_every_byte_counts(checkpoints, messages):
    write(checkpoints, 1)
    last = write(checkpoints, 2)
    whole = last.read_bytes()

    @given(st.integers(0, len(whole) - 1), st.integers(1, 255))
    def check_change(place, other):
        data = bytearray(whole)
        data[place] ^= other
        last.write_bytes(data)
        checkpoint = checkpoints.newest()
        # A change that does not alter the parsed JSON, such as in the padding of the header, has no effect.
        assert checkpoint.arrays["1 count"] == 1 or all(
            np.array_equal(checkpoint.arrays[n], a) for n, a in ARRAYS.items() if n != "1 count"
        )
        if checkpoint.arrays["1 count"] == 1:
            assert messages.pop().startswith(f"{last} is not used: ")
        else:
            assert checkpoint.arrays["1 count"] == 2
            assert checkpoint.values == {"epoch": 0}

    check_change()


def test_files_of_another_run_or_program_are_refused(checkpoints, messages, tmp_path):
    write(checkpoints, 1)
    other = Checkpoints(tmp_path / "other", "another run")
    other.write(5, ARRAYS, {}).replace(checkpoints.folder / "step-000000005.safetensors")
    assert checkpoints.newest().path.name == "step-000000001.safetensors"
    assert (
        "belongs to another run (another run; this is a run); trying the previous one"
        in messages[0]
    )
    from safetensors.numpy import save_file

    save_file({"a": np.ones(3)}, checkpoints.folder / "step-000000006.safetensors")
    assert checkpoints.newest().path.name == "step-000000001.safetensors"
    assert (
        "step-000000006.safetensors is not used: format is None; expected 'tfbig checkpoint 1'"
        in messages[1]
    )


def test_checkpoint_that_does_not_fit_is_refused(checkpoints, messages):
    write(checkpoints, 1)
    write(checkpoints, 2)

    def fits(checkpoint):
        if checkpoint.arrays["1 count"] == 2:
            raise Refused("has another kernel")

    assert checkpoints.newest(fits).arrays["1 count"] == 1
    assert "is not used: has another kernel" in messages[0]


def test_refused_files_do_not_count_among_the_two(checkpoints, messages):
    write(checkpoints, 1)
    for number in (7, 8):
        (checkpoints.folder / f"step-{number:09d}.safetensors").write_bytes(b"nothing")
    assert checkpoints.newest().arrays["1 count"] == 1
    for number in (2, 3):
        write(checkpoints, number)
    again = Checkpoints(checkpoints.folder, "a run", messages.append)
    assert again.newest().arrays["1 count"] == 3
    for number in (4, 8):  # number 8 replaces a damaged file
        write(again, number)
    assert [path.name[11:14] for path in again.paths()] == ["008", "007", "004"]
    assert checkpoints.newest().arrays["1 count"] == 8


def test_error_names_all_unusable_files(checkpoints):
    for number in (1, 2):
        write(checkpoints, number).write_bytes(b"nothing")
    expected = r"none of 2 checkpoints can be used. .*2.safetensors: damaged.*1.safetensors: damaged.* without --resume"
    with pytest.raises(tfbig.SourceError, match=expected):
        checkpoints.newest()


def test_unfinished_file_is_ignored(checkpoints):
    """A process that is killed while it writes leaves such a file."""
    whole = write(checkpoints, 1).read_bytes()
    (checkpoints.folder / ".part-step-000000002.safetensors").write_bytes(whole[:50])
    assert checkpoints.newest().arrays["1 count"] == 1
    write(checkpoints, 2)
    assert checkpoints.newest().arrays["1 count"] == 2


def test_folder_that_cannot_be_created(tmp_path):
    (tmp_path / "file").write_text("")
    checkpoints = Checkpoints(tmp_path / "file", "a run")
    with pytest.raises(tfbig.SourceError, match="checkpoint cannot be written"):
        write(checkpoints, 1)


@pytest.fixture
def small_disk(tmp_path):
    """Path of a file system of 1 MB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("a file system cannot be mounted here")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_full_disk_leaves_earlier_checkpoints(small_disk):
    checkpoints = Checkpoints(small_disk / "checkpoints", "a run")
    small, large = {"a": np.ones(40_000)}, {"a": np.ones(100_000)}
    for number in (1, 2):
        checkpoints.write(number, small, {})
    with pytest.raises(tfbig.SourceError, match=r"No space left.*free space.*--resume"):
        checkpoints.write(3, large, {})
    assert [p.name for p in checkpoints.folder.iterdir() if p.name.startswith(".")] == []
    np.testing.assert_array_equal(checkpoints.newest().arrays["a"], small["a"])
    assert len(checkpoints.paths()) == 2
