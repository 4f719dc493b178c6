"""A record lists what tfbig wrote into a folder of results, and nothing else in it is replaced."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import tfbig
from tfbig.sources.writing import atomic_write, resumable_folder
from tfbig.system import output_folder


def write(path: Path, text: str) -> None:
    with atomic_write(path) as part:
        part.write_text(text)


def test_what_is_recorded_is_replaced_and_nothing_else(tmp_path: Path) -> None:
    folder = output_folder.claim(tmp_path / "out")
    (folder / "views").mkdir()
    for text in ("1", "2"):
        for name in ("a.csv", "views/b.json"):
            write(folder / name, text)
            assert (folder / name).read_text() == text
    for name in ("own.csv", "views/own.json"):
        (folder / name).write_text("mine")
        with pytest.raises(tfbig.SourceError, match=f"{name}: was not written by tfbig"):
            write(folder / name, "theirs")
        assert (folder / name).read_text() == "mine"
        with pytest.raises(tfbig.SourceError, match=f"holds {name}, which tfbig did not write"):
            output_folder.check(folder)
        (folder / name).unlink()
    assert output_folder.claim(folder) == folder


def test_links_are_foreign(tmp_path: Path) -> None:
    """Through a link to a folder, files of that would be replaced."""
    (tmp_path / "elsewhere").mkdir()
    folder = output_folder.claim(tmp_path / "out")
    (folder / "views").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(tfbig.SourceError, match="holds views, which"):
        output_folder.check(folder)


@pytest.mark.parametrize("name", ["note.txt", "sub/note.txt", "slides.csv", "empty"])
def test_folders_of_the_user_are_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("" if name == "empty" else "mine")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(tfbig.SourceError, match=f"holds {name}, which tfbig did not write"):
        output_folder.claim(tmp_path)
    assert sorted(tmp_path.rglob("*")) == before


def test_files_of_the_system_are_no_files_of_the_user(tmp_path: Path) -> None:
    for name in (".DS_Store", "Thumbs.db", "desktop.ini", ".nfs0001", "._a"):
        (tmp_path / name).write_text("")
    assert output_folder.is_claimed(output_folder.claim(tmp_path))


def test_inputs_are_not_in_the_folder(tmp_path: Path) -> None:
    folder = output_folder.claim(tmp_path / "out")
    write(folder / "a.h5", "1")
    (tmp_path / "link").symlink_to(folder / "a.h5")
    for path in (folder, folder / "a.h5", tmp_path / "link", f"{folder}/../out"):
        with pytest.raises(tfbig.SourceError, match="read by this command"):
            output_folder.check(folder, [path])
    output_folder.check(folder, [tmp_path, tmp_path / "outside", tmp_path / "out2"])


def test_folders_in_folders_have_records_of_their_own(tmp_path: Path) -> None:
    outer = output_folder.claim(tmp_path / "out")
    inner = output_folder.claim(outer / "seed-0")
    write(inner / "a.csv", "1")
    output_folder.check(outer)
    (inner / "b.csv").write_text("mine")
    with pytest.raises(tfbig.SourceError, match="holds seed-0/b"):
        output_folder.check(outer)


def test_folders_of_which_all_is_written(tmp_path: Path) -> None:
    folder = output_folder.claim(tmp_path / "out")
    kept = resumable_folder(folder / ".a.maps", {"model": 1})
    (kept / "maps.npy").write_text("1")
    output_folder.check(folder)
    assert resumable_folder(kept, {"model": 1}) == kept
    assert (kept / "maps.npy").exists()
    resumable_folder(kept, {"model": 2})
    assert not (kept / "maps.npy").exists()
    (folder / ".b.maps").mkdir()
    (folder / ".b.maps" / "identity.json").write_text("{}")
    with pytest.raises(tfbig.SourceError, match="was not written by tfbig"):
        resumable_folder(folder / ".b.maps", {"model": 1})
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "a.npy").write_text("mine")
    with pytest.raises(tfbig.SourceError, match="was not written by tfbig"):
        resumable_folder(tmp_path / "own", {"model": 1})


def test_a_line_that_a_killed_process_did_not_end_is_left_out(tmp_path: Path) -> None:
    folder = output_folder.claim(tmp_path)
    write(folder / "ä\n.csv", "1")
    with open(folder / output_folder.RECORD, "a") as file:
        file.write('"b.c')
    write(folder / "ä\n.csv", "2")


def test_each_writer_has_a_temporary_file_of_its_own(tmp_path: Path) -> None:
    """Two that write the same file at once: each file is whole, and the last one stays."""
    path = tmp_path / "a.csv"
    with atomic_write(path) as first:
        first.write_text("first")
        with atomic_write(path) as second:
            second.write_text("second")
        assert path.read_text() == "second"
    assert path.read_text() == "first"
    assert [p.name for p in tmp_path.iterdir()] == ["a.csv"]
    long = tmp_path / ("x" * 251 + ".csv")
    write(long, "1")
    assert long.read_text() == "1"


def test_files_of_killed_processes_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = output_folder.claim(tmp_path / "out")
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    with monkeypatch.context() as other:
        other.setattr(os, "getpid", lambda: ended.pid)
        for place in (tmp_path, folder):
            output_folder.part_of(place / "a.csv").write_text("1")
    assert len(list(tmp_path.rglob(".part-*"))) == 2
    mine = output_folder.part_of(tmp_path / "b.csv")
    mine.write_text("1")
    output_folder.claim(folder)
    write(tmp_path / "c.csv", "1")
    assert list(tmp_path.rglob(".part-*")) == [mine]


@pytest.mark.parametrize(
    "name", ["", "..", ".", "a/b.png", "/etc/a", "a\\b", "a\0", "a\nb", "x" * 256]
)
def test_texts_that_are_no_names_of_files(name: str, tmp_path: Path) -> None:
    with pytest.raises(tfbig.SourceError, match="cannot be the name of a file"):
        output_folder.file_in(tmp_path, name)


def test_names_of_files(tmp_path: Path) -> None:
    for name in ("a.png", "..a", "größe 1\xa0mm.png", os.fsdecode(b"\xff.png")):
        assert output_folder.file_in(tmp_path, name) == tmp_path / name
