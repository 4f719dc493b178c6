"""Files on which a library ends its process."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import h5py
import pytest
from slide_files import NDPI

from tfbig.errors import SourceError
from tfbig.sources import open_bag, open_slide, trial


def program(path: Path, body: str) -> Path:
    """Write a program that does something with every name."""
    path.write_text(f"import os, sys, time\nfor line in sys.stdin:\n    {body}\n")
    return path


@pytest.fixture
def other_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    trial._check.cache_clear()
    monkeypatch.setattr(trial, "_PROCESS", trial._Process())
    monkeypatch.setattr(trial, "PROGRAM", tmp_path / "program.py")
    yield tmp_path / "program.py"
    trial._PROCESS.stop()
    trial._check.cache_clear()


def test_library_that_aborts(other_program: Path) -> None:
    message = "GLib-ERROR **: failed to allocate 17179869184 bytes"
    program(other_program, f"print({message!r}, file=sys.stderr, flush=True); os.abort()")
    for _ in range(2):  # the process is started again
        with pytest.raises(
            SourceError,
            match=rf"{NDPI.name}: the library ends its process with SIGABRT on it \(GLib",
        ):
            open_slide(NDPI)


def test_library_that_exits_or_hangs(
    other_program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    h5py.File(tmp_path / "a.h5", "w").close()
    program(other_program, "sys.exit(3)")
    with pytest.raises(
        SourceError, match=r"a\.h5: .* with exit code 3 on it \(no message\) \(800 bytes"
    ):
        open_bag(tmp_path / "a.h5")
    monkeypatch.setattr(trial, "SECONDS", 0.2)
    program(other_program, "time.sleep(60)")
    with pytest.raises(SourceError, match=r"a\.h5: the library has not opened it in 0\.2 s"):
        open_bag(tmp_path / "a.h5")


def test_files_are_tried_once_by_one_process(other_program: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    write = f"open({str(log)!r}, 'a').write(line)"
    program(other_program, f"""{write}; print('""', flush=True)""")
    paths = [tmp_path / f"{n}.h5" for n in range(20)]
    for path in paths:
        path.write_bytes(b"any")
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda path: trial.check("hdf5", path), paths * 5))
    assert len(set(log.read_text().splitlines())) == 20
    lines = len(log.read_text().splitlines())
    for path in paths:
        trial.check("hdf5", path)
    assert len(log.read_text().splitlines()) == lines
    paths[0].write_bytes(b"other")
    trial.check("hdf5", paths[0])
    assert len(log.read_text().splitlines()) == lines + 1
    with pytest.raises(SourceError, match=r"none\.h5: cannot be opened: No such file"):
        trial.check("hdf5", tmp_path / "none.h5")


def test_process_that_was_ended_while_it_waited(other_program: Path, tmp_path: Path) -> None:
    program(other_program, """print('""', flush=True)""")
    for name in ("a.h5", "b.h5"):
        (tmp_path / name).write_bytes(b"any")
        trial.check("hdf5", tmp_path / name)
        assert trial._PROCESS._child is not None
        trial._PROCESS._child.kill()
        trial._PROCESS._child.wait()


def test_file_that_hdf5_cannot_read_is_not_opened_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HDF5 may write to memory that it has freed when the groups of a file are damaged."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["features"] = [[1.0, 2.0]]
    data = (tmp_path / "a.h5").read_bytes()
    (tmp_path / "a.h5").write_bytes(data.replace(b"SNOD", b"SNOB"))
    monkeypatch.setattr(h5py, "File", None)
    with pytest.raises(
        SourceError, match=r"a\.h5: is not a readable HDF5 file: .*bad symbol table .* damaged"
    ):
        open_bag(tmp_path / "a.h5")


def test_relative_paths_after_a_change_of_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("first", "second"):
        (tmp_path / folder).mkdir()
        monkeypatch.chdir(tmp_path / folder)
        with h5py.File(f"{folder}.h5", "w") as file:
            file["features"], file["coords"] = [[1.0, 2.0]], [[0, 0]]
        assert open_bag(f"{folder}.h5").shape == (1, 2)
