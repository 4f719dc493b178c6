"""Which thing a name means: of files with and without suffixes, of tables, and of spreadsheets."""

from __future__ import annotations

import unicodedata

import pytest

from tfbig import sources
from tfbig.sources import names
from tfbig.sources.names import EXACT, ITS_SUFFIX, NUMBER, OTHER_SUFFIX, Names
from tfbig.sources.scenes import gdal, vectors


def test_suffixes_of_all_readers_are_known() -> None:
    known = {*sources.SLIDE_SUFFIXES, *sources.VOLUME_SUFFIXES, *vectors.SUFFIXES, *gdal.DRIVERS}
    assert known <= names.SUFFIXES


@pytest.mark.parametrize(
    ("path", "title"),
    [
        ("a.tif", "a"),
        ("folder/a.SVS", "a"),
        ("a.ome.tif", "a"),
        ("a.OME.Tiff", "a"),
        ("a.ome.zarr", "a"),
        ("v.nii.gz", "v"),
        ("v.NII.GZ", "v"),
        ("case1.2", "case1.2"),
        ("case1.2.tif", "case1.2"),
        ("case1.2.ome.tif", "case1.2"),
        ("TCGA-AA-0001-01Z-00-DX1.83fce43e", "TCGA-AA-0001-01Z-00-DX1.83fce43e"),
        ("a.ome", "a.ome"),
        ("a.tar.gz", "a.tar.gz"),
        ("a.svs.h5", "a.svs"),
        (".tif", ".tif"),
        ("IM.0001", "IM.0001"),
        ("10005.0", "10005.0"),
        ("", ""),
    ],
)
def test_only_known_suffixes_are_cut_off(path: str, title: str) -> None:
    assert names.title_of(path) == title


@pytest.mark.parametrize(
    ("name", "file", "how"),
    [
        ("a.tif", "a.tif", EXACT),
        ("a", "a.tif", ITS_SUFFIX),
        ("a.tif", "a", ITS_SUFFIX),
        ("a", "a.ome.tif", ITS_SUFFIX),
        ("a.ome", "a.ome.tif", ITS_SUFFIX),
        ("a.svs", "a.h5", OTHER_SUFFIX),
        ("a.SVS", "a.svs", OTHER_SUFFIX),
        ("v.nii", "v.nii.gz", OTHER_SUFFIX),
        ("case1.2", "case1.2.h5", ITS_SUFFIX),
        ("case1.2.svs", "case1.2.h5", OTHER_SUFFIX),
        ("case1.svs", "case1.svs.h5", ITS_SUFFIX),
        ("10005.0", "10005.tif", NUMBER),
        ("10005", "10005.0", NUMBER),
        ("10005.00.svs", "10005.tif", NUMBER),
        ("10005,0", "10005.tif", NUMBER),
        ("10005.0", "10005.0.tif", ITS_SUFFIX),
        ("a/b.tif", "b.tif", EXACT),
        ("b", "a/b.tif", ITS_SUFFIX),
        ("a/b", "x/a/b.tif", ITS_SUFFIX),
        ("/elsewhere/b.tif", "a/b.tif", EXACT),
        ("./b.tif", "b.tif", EXACT),
    ],
)
def test_matches(name: str, file: str, how: int) -> None:
    assert Names([(file, 0), ("other.tif", 1)]).match(name) == (how, [0])


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("case1.2", "case1.tif"),
        ("case1.2", "case1.h5"),
        ("case1", "case1.2.tif"),
        ("case1.2.tif", "case1.tif"),
        ("case1.3", "case1.2.tif"),
        ("a", "A.tif"),
        ("10005.1", "10005.tif"),
        ("10005.01", "10005.tif"),
        ("010005", "10005.tif"),
        ("1e3", "1000.tif"),
        ("a.0", "a.tif"),
        ("", "a.tif"),
        ("", ".tif"),
        ("a", "a.tar.gz"),
        ("x/b.tif", "a/b.tif"),
        ("a.txt", "a.tif"),
    ],
)
def test_what_does_not_match(name: str, file: str) -> None:
    assert Names([(file, 0)]).match(name) is None


def test_the_best_match_counts() -> None:
    found = Names(
        [(name, name) for name in ("a", "a.tif", "a.svs", "7", "7.0", "x/b.h5", "y/b.h5")]
    )
    assert found.match("a") == (EXACT, ["a"])
    assert found.match("a.tif") == (EXACT, ["a.tif"])
    assert found.match("a.h5") == (ITS_SUFFIX, ["a"])
    assert found.match("7.0") == (EXACT, ["7.0"])
    assert found.match("7.00") == (NUMBER, ["7", "7.0"])
    assert found.match("b") == (ITS_SUFFIX, ["x/b.h5", "y/b.h5"])
    assert found.match("y/b") == (ITS_SUFFIX, ["y/b.h5"])
    assert found.match("z/b") is None
    anywhere = Names([("x/b.h5", 0)], anywhere=True)
    assert anywhere.match("z/b") == (ITS_SUFFIX, [0])


def test_composed_and_decomposed_letters() -> None:
    """Macs decompose the letters of files."""
    composed = unicodedata.normalize("NFC", "Müller")
    decomposed = unicodedata.normalize("NFD", "Müller")
    assert composed != decomposed
    assert Names([(f"{decomposed}.tif", 0)]).match(composed) == (ITS_SUFFIX, [0])


@pytest.mark.parametrize(
    ("name", "others", "alike"),
    [
        ("case_a", ["case-a.tif", "b.tif"], "case-a.tif"),
        ("Case1", ["case2", "case1"], "case1"),
        (
            "TCGA-1",
            ["x", "TCGA-1.83fce43e-42ac-4dcd-b156.svs"],
            "TCGA-1.83fce43e-42ac-4dcd-b156.svs",
        ),
        ("case1.2", ["case1.tif"], "case1.tif"),
        ("123", ["00123.tif"], "00123.tif"),
        ("a_mask.png", ["b.tif", "a.tif"], "a.tif"),
        ("10OO8", ["10008.0"], "10008.0"),
        ("q", ["a", "b"], None),
        ("q", [], None),
    ],
)
def test_near_names(name: str, others: list[str], alike: str | None) -> None:
    assert names.near(name, others) == alike
