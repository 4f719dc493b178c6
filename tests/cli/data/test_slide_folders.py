"""Slides in folders as people have them: flat, in a folder for each slide, beside results."""

from __future__ import annotations

from pathlib import Path

import pytest

from tfbig import SourceError, sources
from tfbig.cli import slide_batch
from tfbig.cli.data import slide_folders, slides_and_masks
from tfbig.tissue import outline_file


def touch(folder: Path, *names: str) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


def names_of(paths: list[Path], folder: Path) -> list[str]:
    return [str(path.relative_to(folder)) for path in paths]


def test_subfolders_of_a_folder_with_slides_are_not_searched(tmp_path: Path) -> None:
    touch(tmp_path, "b.svs", "a.tif", "deep/c.png", "masks/a.png", "notes.txt")
    assert names_of(slide_folders.slides_in(tmp_path), tmp_path) == ["a.tif", "b.svs"]
    assert names_of(slide_folders.slides_below(tmp_path), tmp_path) == [
        "a.tif",
        "b.svs",
        "deep/c.png",
    ]


def test_masks_beside_images(tmp_path: Path) -> None:
    names = ["a.tif", "a_mask.png", "a_seg.tif", "b_mask.tif", "a_masked.tif"]
    files = [tmp_path / name for name in names]
    kept = [path.name for path in slide_folders.without_masks(files)]
    assert kept == ["a.tif", "b_mask.tif", "a_masked.tif"]


def test_masks_of_images(tmp_path: Path) -> None:
    """Masks in the folder `masks` come first; names and suffixes may have dots and capitals."""
    touch(tmp_path, "a.tif", "a_masks.tif", "masks/a.png", "b.v1.tif", "b.v1_cp_masks.PNG", "c.tif")
    touch(tmp_path, "d.tif", "d_mask.txt", "elsewhere/e.ome.tif", "elsewhere/masks/e.npy")
    images = [
        tmp_path / name for name in ("a.tif", "b.v1.tif", "c.tif", "d.tif", "elsewhere/e.ome.tif")
    ]
    masks = slide_folders.masks_of(images, sources.SLIDE_SUFFIXES)
    assert names_of([*masks], tmp_path) == ["a.tif", "b.v1.tif", "elsewhere/e.ome.tif"]
    expected = ["masks/a.png", "b.v1_cp_masks.PNG", "elsewhere/masks/e.npy"]
    assert names_of([*masks.values()], tmp_path) == expected


@pytest.mark.parametrize("names", [("masks/a.png", "masks/a.tif"), ("a_mask.png", "a_seg.tif")])
def test_two_masks_of_an_image(tmp_path: Path, names: tuple[str, str]) -> None:
    touch(tmp_path, "a.tif", *names)
    message = rf"{names[0]} and .*{names[1]} both belong to a\.tif; expected one"
    with pytest.raises(SourceError, match=message):
        slide_folders.masks_of([tmp_path / "a.tif"], sources.SLIDE_SUFFIXES)


def test_two_images_of_a_mask(tmp_path: Path) -> None:
    touch(tmp_path, "a.png", "a.tif", "b.tif", "masks/a.png", "masks/b.png")
    images = [tmp_path / name for name in ("a.png", "a.tif", "b.tif")]
    message = r"a\.png and .*a\.tif would both have the mask .*masks/a\.png; expected one image of"
    with pytest.raises(SourceError, match=message):
        slide_folders.masks_of(images, sources.SLIDE_SUFFIXES)
    assert len(slide_folders.masks_of(images[1:], sources.SLIDE_SUFFIXES)) == 2


@pytest.mark.parametrize("name", ["a.geojson", "a.JSON", "a.geojson.gz", "a.json.GZ"])
def test_outlines_are_found_by_name(tmp_path: Path, name: str) -> None:
    """Whatever `read_outlines` reads."""
    touch(tmp_path, "a.ome.tif", f"masks/{name}", "masks/b.csv.gz")
    mask = tmp_path / "masks" / name
    assert slides_and_masks.mask_of(tmp_path / "a.ome.tif") == mask
    assert slide_folders.file_of(tmp_path / "masks", "a", outline_file.SUFFIXES) == mask
    assert slide_folders.files_in(tmp_path / "masks", slides_and_masks.OF_MASKS) == [mask]


def test_two_files_of_a_name(tmp_path: Path) -> None:
    """Outlines go before masks, so that they are found among the results of a prediction."""
    touch(tmp_path, "a.png", "a.npy", "b.png", "b.npy", "b.geojson")
    suffixes = (".geojson", ".png", ".npy")
    with pytest.raises(SourceError, match=r"a\.npy and .*a\.png both belong to a; expected one"):
        slide_folders.file_of(tmp_path, "a", suffixes)
    assert slide_folders.file_of(tmp_path, "b", suffixes) == tmp_path / "b.geojson"
    assert slide_folders.file_of(tmp_path, "c", suffixes) is None
    assert slide_folders.file_of(tmp_path, "a", suffixes, tmp_path / "a.png") == tmp_path / "a.npy"


def test_folders_of_classes(tmp_path: Path) -> None:
    touch(tmp_path, "red/a.svs", "red/deep/b.svs", "blue/c.tif", "notes/x.txt", ".cache/d.tif")
    found = slide_folders.classes_in(tmp_path)
    names = {name: names_of(paths, tmp_path) for name, paths in found.items()}
    assert names == {"blue": ["blue/c.tif"], "red": ["red/a.svs", "red/deep/b.svs"]}


def test_a_folder_for_each_slide_as_in_downloads_of_gdc(tmp_path: Path) -> None:
    touch(tmp_path, "1f/TCGA-AA-0001-01Z-00-DX1.svs", "1f/logs/x.parcel", "02/TCGA-AA-0002.svs")
    expected = ["02/TCGA-AA-0002.svs", "1f/TCGA-AA-0001-01Z-00-DX1.svs"]
    assert names_of(slide_batch.list_slides([tmp_path]), tmp_path) == expected


def test_pictures_of_results_are_not_slides(tmp_path: Path) -> None:
    touch(tmp_path, "x/a.tif", "run/config.yaml", "run/a.png", "run/views/b.png", "t/tile.yaml")
    touch(tmp_path, "t/a.png", "p/predict.yaml", "p/a.ome.tif")
    assert names_of(slide_folders.slides_in(tmp_path), tmp_path) == ["x/a.tif"]


def test_equal_names_in_subfolders_are_an_error(tmp_path: Path) -> None:
    touch(tmp_path, "x/a.tif", "y/a.svs")
    with pytest.raises(SourceError, match="results of both would be written to 'a'"):
        slide_batch.list_slides([tmp_path])


def test_files_that_are_passed_over(tmp_path):
    for name in ("a.tif", "b.txt", "c.TXT", "slides.csv", ".hidden", "README"):
        (tmp_path / name).write_text("x")
    (tmp_path / "folder").mkdir()
    found = slide_folders.passed_over(tmp_path, [tmp_path / "a.tif"])
    assert found == "2 .txt, 1 no suffix, 1 .csv"
    assert slide_folders.passed_over(tmp_path, [tmp_path]) == ""
