"""`.npy` files written by rows, which appear when they are complete."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from slide_files import image

from tfbig import sources
from tfbig.errors import BudgetError, SourceError
from tfbig.sources.writing import atomic_write, resumable_folder
from tfbig.system import output_folder


@pytest.mark.parametrize("shape", [(30, 7), (30, 7, 3)])
@pytest.mark.parametrize("dtype", ["uint8", ">f4"])
def test_equals_numpy(tmp_path: Path, shape: tuple[int, ...], dtype: str) -> None:
    path, array = tmp_path / "a.npy", image(*shape).astype(dtype)
    with sources.write_npy(path, shape, dtype) as file:
        for start in (20, 0, 10):  # any order
            file.write(start, array[start : start + 10])
        assert not path.exists()
        assert [p.name.endswith("-a.npy") for p in tmp_path.iterdir()] == [True]
    written = np.load(path)
    assert written.dtype == array.dtype
    np.testing.assert_array_equal(written, array)
    assert os.listdir(tmp_path) == ["a.npy"]


def test_rows_not_contiguous(tmp_path: Path) -> None:
    array = image(10, 20)[:, ::2]
    with sources.write_npy(tmp_path / "a.npy", array.shape, array.dtype) as file:
        file.write(0, array)
    np.testing.assert_array_equal(np.load(tmp_path / "a.npy"), array)


def test_failure_keeps_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    np.save(path, np.ones(3))
    with (
        pytest.raises(RuntimeError, match="mine"),
        sources.write_npy(path, (4, 4), np.uint8) as file,
    ):
        file.write(0, image(2, 4))
        raise RuntimeError("mine")
    assert os.listdir(tmp_path) == ["a.npy"]
    np.testing.assert_array_equal(np.load(path), np.ones(3))


def test_missing_rows(tmp_path: Path) -> None:
    message = r"/a\.npy: 3 of 10 rows were not written, the first is row 2"
    with (
        pytest.raises(SourceError, match=message),
        sources.write_npy(tmp_path / "a.npy", (10, 4), np.uint8) as file,
    ):
        file.write(0, image(2, 4))
        file.write(5, image(5, 4))
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("start", "rows"),
    [(9, image(2, 4)), (-1, image(2, 4)), (0, image(2, 5)), (0, image(2, 4, dtype="uint16"))],
)
def test_invalid_rows(tmp_path: Path, start: int, rows: np.ndarray) -> None:
    message = rf"rows {start}:{start + 2} of shape .* do not fit shape \(10, 4\) and dtype uint8"
    with (
        pytest.raises(ValueError, match=message),
        sources.write_npy(tmp_path / "a.npy", (10, 4), np.uint8) as file,
    ):
        file.write(start, rows)


def test_disk_space(tmp_path: Path) -> None:
    with (
        pytest.raises(
            BudgetError, match=r"a\.npy: needs 931322574\.7 GiB on disk, .* Free disk space"
        ),
        sources.write_npy(tmp_path / "a.npy", (10**9, 10**9), np.uint8),
    ):
        pass
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("name", ["a.tif", "a", ".npy", "a.npy.gz"])
def test_other_suffixes(tmp_path: Path, name: str) -> None:
    message = rf"{name}: cannot be written as a \.npy file; expected a path that ends in \.npy"
    with (
        pytest.raises(SourceError, match=message),
        sources.write_npy(tmp_path / name, (2, 2), np.uint8),
    ):
        pass
    assert os.listdir(tmp_path) == []


def test_missing_folder(tmp_path: Path) -> None:
    with (
        pytest.raises(
            SourceError, match=r"its folder cannot be written to: .* Create .*none first"
        ),
        sources.write_npy(tmp_path / "none" / "a.npy", (2, 2), np.uint8),
    ):
        pass


@pytest.fixture
def foreseen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give temporary files a name that others know."""
    monkeypatch.setattr(output_folder, "part_of", lambda path: path.with_name(f".part-{path.name}"))


def test_part_file_is_a_folder(tmp_path: Path, foreseen: None) -> None:
    (tmp_path / ".part-a.npy").mkdir()
    with (
        pytest.raises(SourceError, match=r"/a\.npy: cannot be opened: Is a directory"),
        sources.write_npy(tmp_path / "a.npy", (2, 2), np.uint8),
    ):
        pass


def test_disk_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> int:
        raise OSError(28, "No space left on device")

    with (
        pytest.raises(SourceError, match=r"/a\.npy: writing at byte 128 failed: .*No space"),
        sources.write_npy(tmp_path / "a.npy", (2, 2), np.uint8) as file,
    ):
        monkeypatch.setattr(os, "pwrite", full)
        file.write(0, image(2, 2))
    assert os.listdir(tmp_path) == []


def test_resumable_folder(tmp_path: Path) -> None:
    """Files are kept for the same identity and removed for another one; what has none is not touched."""
    folder = resumable_folder(tmp_path / "a", {"model": "x", "size": (3, 4)})
    (folder / "part").touch()
    assert resumable_folder(folder, {"size": [3, 4], "model": "x"}) == folder
    assert (folder / "part").exists()
    resumable_folder(folder, {"model": "y", "size": (3, 4)})
    assert not (folder / "part").exists()
    (folder / "part").touch()
    (folder / "identity.json").unlink()
    with pytest.raises(SourceError, match="a: was not written by tfbig"):
        resumable_folder(folder, {"model": "y", "size": (3, 4)})
    assert (folder / "part").exists()
    (tmp_path / "file").touch()
    with pytest.raises(SourceError, match=r"file: cannot be written"):
        resumable_folder(tmp_path / "file", {})


def test_links_with_the_temporary_name_are_not_followed(tmp_path: Path, foreseen: None) -> None:
    (tmp_path / "secret").write_text("untouched")
    (tmp_path / ".part-a.txt").symlink_to(tmp_path / "secret")
    with atomic_write(tmp_path / "a.txt") as part:
        part.write_text("new")
    assert (tmp_path / "secret").read_text() == "untouched"
    assert (tmp_path / "a.txt").read_text() == "new"
    os.mkfifo(tmp_path / ".part-a.txt")  # opening it would wait for a reader
    with atomic_write(tmp_path / "a.txt") as part:
        part.write_text("newer")
    assert sorted(os.listdir(tmp_path)) == ["a.txt", "secret"]
