"""What commands over many files list in a folder, and how results are named."""

from __future__ import annotations

from pathlib import Path

import pytest

from tfbig.cli.input_kinds import BAGS, SCENES, SLIDES, VOLUMES, InputKind

FILES = ("a.tif", "b.svs", "c.h5", "d.nii.gz", "e.txt")


@pytest.mark.parametrize(
    ("kind", "found"),
    [
        (SLIDES, ["a.tif", "b.svs"]),
        (SCENES, ["a.tif", "b.svs"]),
        (BAGS, ["c.h5"]),
        (VOLUMES, ["d.nii.gz"]),
    ],
)
def test_what_is_listed(kind: InputKind, found: list[str], tmp_path: Path) -> None:
    for name in FILES:
        (tmp_path / name).write_bytes(b"x")
    assert [path.name for path in kind.listed(tmp_path)] == found
    assert kind.is_slide == (kind in (SLIDES, SCENES))


def test_names_of_results() -> None:
    assert SLIDES.title(Path("x/a.svs")) == "a"
    assert VOLUMES.title(Path("x/case_0000.nii.gz")) == "case"
