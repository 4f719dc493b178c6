"""One kind of error, regular files, sizes before bytes, and files beside a header."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import tfbig
from tfbig.sources import untrusted


@pytest.mark.parametrize(
    "error",
    [
        KeyError("a"),
        ZeroDivisionError("by\nzero"),
        RecursionError(),
        MemoryError(),
        OSError(5, "no"),
    ],
)
def test_every_error_of_a_library_is_one_line_with_the_file(error: Exception) -> None:
    with pytest.raises(tfbig.SourceError) as raised, untrusted.reading("a.dcm"):
        raise error
    assert str(raised.value).startswith("a.dcm: cannot be read: ")
    assert len(str(raised.value).splitlines()) == 1
    assert raised.value.__cause__ is error


def test_errors_of_tfbig_and_interrupts_pass() -> None:
    own = tfbig.SourceError("b.dcm: is truncated.")
    for error in (own, KeyboardInterrupt(), SystemExit(2)):
        with pytest.raises(type(error)) as raised, untrusted.reading("a.dcm"):
            raise error
        assert raised.value is error


def test_pipes_folders_and_missing_files_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name, words in (("pipe", "regular"), (".", "regular"), ("no", "No such"), ("a\0", "null")):
        with pytest.raises(tfbig.SourceError, match=words):
            untrusted.regular_file(f"{tmp_path}/{name}")
    (tmp_path / "link").symlink_to(__file__)
    assert untrusted.regular_file(tmp_path / "link").st_size == Path(__file__).stat().st_size


def test_sizes_are_refused_before_they_are_read(tmp_path: Path) -> None:
    path = tmp_path / "weights.npz"
    path.write_bytes(bytes(1000))
    untrusted.check_size(path, 2**30, "its weights")
    untrusted.check_size(path, 2**40, "its weights", stored=2**35)
    with pytest.raises(
        tfbig.SourceError, match=r"its weights would take .*, but 1000 B are stored"
    ):
        untrusted.check_size(path, 2**30 + 1, "its weights")


def test_files_beside_a_header(tmp_path: Path) -> None:
    folder = tmp_path / "a"
    (folder / "raw").mkdir(parents=True)
    for path in (folder / "raw" / "x.raw", folder / "y.raw", tmp_path / "z.raw"):
        path.write_bytes(b"1")
    (folder / "link").symlink_to(tmp_path / "z.raw")
    header = folder / "x.nhdr"
    assert untrusted.beside(header, "raw/x.raw") == folder / "raw" / "x.raw"
    assert untrusted.beside(header, "./y.raw").read_bytes() == b"1"
    for name in ("../z.raw", str(tmp_path / "z.raw"), "link", "/etc/passwd", ".."):
        with pytest.raises(tfbig.SourceError, match="not in its own folder"):
            untrusted.beside(header, name)
    with pytest.raises(
        tfbig.SourceError, match=r"x\.nhdr: names a file that .*none\.raw: .*No such file"
    ):
        untrusted.beside(header, "none.raw")
