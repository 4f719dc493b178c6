"""Slides and masks of `--task segmentation` that cannot be used."""

import json

import numpy as np
import pytest
import tifffile
from cli_runs import run_segmentation
from masked_images import check_background
from samples import tissue, write_slide
from scanned_slides import write_scanned

from tfbig.cli.data import slides_and_masks
from tfbig.cli.data.background import Masking
from tfbig.cli.main import main
from tfbig.sources import ArraySource
from tfbig.tissue import OutlineRule, tissue_mask


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("b.tif", b"not an image", "b.tif"),
        ("b.png", b"nor this", "b.png"),
    ],
)
def test_file_that_is_not_an_image(data, tmp_path, capsys, name, content, message):
    (data / "b.tif").unlink()
    (data / name).write_bytes(content)
    assert run_segmentation(data, tmp_path / "out", "--strict") == 1
    error = capsys.readouterr().err.strip()
    assert message in error
    assert "Traceback" not in error
    assert not (tmp_path / "out").exists()


def test_truncated_tiff(data, tmp_path, capsys):
    path = data / "b.tif"
    path.write_bytes(path.read_bytes()[:-2000])
    assert run_segmentation(data, tmp_path / "out", "--strict") == 1
    assert "b.tif" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_slide_smaller_than_the_stride(data, tmp_path, capsys):
    tifffile.imwrite(data / "b.tif", tissue(1)[:100], photometric="rgb")
    assert run_segmentation(data, tmp_path / "out", "--strict") == 1
    assert "expected at least 128 x 128, the stride" in capsys.readouterr().err


def test_mask_of_another_size(data, tmp_path, capsys):
    (data / "masks").mkdir()
    np.save(data / "masks" / "a.npy", np.ones((256, 200, 1), np.uint8))
    assert run_segmentation(data, tmp_path / "out", "--strict") == 1
    error = capsys.readouterr().err
    assert "256 x 200" in error
    assert "256 x 384" in error


@pytest.mark.slow
def test_unreadable_slide_is_skipped(tmp_path, capsys):
    for number in (0, 2, 3):
        write_slide(tmp_path / "slides" / f"{number}.tif", number)
    (tmp_path / "slides" / "1.tif").write_bytes(b"II*\0 no slide")
    flags = ["--crop", "128x256", "--crops", "2", "--epochs", "1"]
    flags += ["--data", str(tmp_path / "slides")]
    assert main(["train", *flags, "--out", str(tmp_path / "again")]) == 3
    assert "skipped 1.tif" in capsys.readouterr().err
    assert "1.tif" in (tmp_path / "again" / "failed.csv").read_text()
    assert main(["train", *flags, "--strict", "--out", str(tmp_path / "strict")]) == 1
    for number in (2, 3):
        (tmp_path / "slides" / f"{number}.tif").write_bytes(b"")
    assert main(["train", *flags, "--out", str(tmp_path / "one")]) == 1
    assert "holds 1 slide" in capsys.readouterr().err


def faint(seed):
    """Return a slide with patches of gray levels from 200 to 245."""
    levels = np.random.default_rng(seed).integers(200, 246, (8, 12))
    return np.kron(levels, np.ones((64, 64)))[..., None].repeat(3, 2).astype(np.uint8)


@pytest.mark.parametrize("offset", [-7, 5])
def test_labels_of_a_darker_slide(tmp_path, offset):
    """Labels change with the brightness as if the slide had been darker when it was labelled."""
    image = faint(3)
    np.save(tmp_path / "a.npy", image)
    np.save(
        tmp_path / "b.npy", image - np.uint8(offset) if offset > 0 else image + np.uint8(-offset)
    )
    changed = slides_and_masks.open_slide(tmp_path / "a.npy").darker(offset)
    expected = slides_and_masks.open_slide(tmp_path / "b.npy")
    rows = 0, image.shape[0]
    np.testing.assert_array_equal(changed.image.read(*rows), expected.image.read(*rows))
    np.testing.assert_array_equal(changed.labels.read(*rows), expected.labels.read(*rows))
    real = tissue_mask(ArraySource(image)).read(*rows)
    assert (changed.labels.read(*rows) != real).any()


def test_mask_of_a_darker_slide(tmp_path):
    """Labels that somebody drew do not depend on the brightness."""
    np.save(tmp_path / "a.npy", faint(1))
    np.save(tmp_path / "mask.npy", np.random.default_rng(0).integers(0, 2, (512, 768, 1), np.uint8))
    slide = slides_and_masks.open_slide(tmp_path / "a.npy", tmp_path / "mask.npy")
    assert slide.darker(4).labels is slide.labels


def test_drawn(tmp_path):
    """Crops depend on the seeds only; whole slides come once each, padded."""
    slides = []
    for number in range(3):
        np.save(tmp_path / f"{number}.npy", faint(number)[: 300 + number])
        slides.append(slides_and_masks.open_slide(tmp_path / f"{number}.npy"))

    def read(crops):
        return [(c.image.read(0, 128).tobytes(), c.labels.read(0, 128).tobytes()) for c in crops]

    first, again, other = (
        slides_and_masks.draw(slides, (128, 256), 7, seed, brightness=10)
        for seed in ([1, 0], [1, 0], [1, 1])
    )
    assert [crop.name for crop in first] == [f"{n % 3}.npy" for n in range(7)]
    assert read(first) == read(again)
    assert not {*read(first)} & {*read(other)}
    whole = slides_and_masks.draw(slides, None, 3, [1, 0])
    assert {crop.name for crop in whole} == {"0.npy", "1.npy", "2.npy"}
    assert {crop.image.shape for crop in whole} == {(384, 768, 1)}


def test_padding_of_a_masked_slide_is_background(tmp_path):
    """At every brightness; other slides are padded with 0."""
    tifffile.imwrite(tmp_path / "a.tif", tissue(1)[:200, :300], photometric="rgb")
    masking = Masking("grey")
    slide = slides_and_masks.open_slide(tmp_path / "a.tif", masking=masking)
    for offset in (0, 10, -200):
        image = slide.darker(offset).padded().image
        pixels = image.read(0, 256)
        assert image.shape == (256, 384, 1)
        assert (pixels[200:] == pixels[0, 0]).all() and (pixels[:, 300:] == pixels[0, 0]).all()
        assert image.background.share < slide.image.background.share
        check_background(image, 0.5)
    plain = slides_and_masks.open_slide(tmp_path / "a.tif").darker(5).padded().image
    assert (plain.read(0, 256)[200:] == 0).all()


OUTLINE = {
    "type": "Feature",
    "geometry": {
        "type": "Polygon",
        "coordinates": [[[10, 20], [100, 20], [100, 200], [10, 200], [10, 20]]],
    },
    "properties": {"objectType": "annotation", "classification": {"name": "Tumor"}},
}


@pytest.mark.parametrize(
    "place", ["masks/a.geojson", "masks/a.npy", "a_mask.npy", "a_mask.geojson"]
)
def test_masks_by_name(place, tmp_path):
    """A mask is in the folder masks or beside the slide, an image or outlines; it is no slide itself."""
    for name in "ab":
        write_slide(tmp_path / f"{name}.tif", ord(name))
    expected = np.zeros((256, 384), np.uint8)
    expected[20:200, 10:100] = 1
    path = tmp_path / place
    path.parent.mkdir(exist_ok=True)
    if path.suffix == ".npy":
        np.save(path, expected[..., None] * 255)
    else:
        path.write_text(json.dumps({"type": "FeatureCollection", "features": [OUTLINE]}))
    found = slides_and_masks.open_slides(tmp_path)
    slides, failed = found.items, found.failed
    assert [slide.name for slide in slides] == ["a.tif", "b.tif"]
    assert not failed
    np.testing.assert_array_equal(slides[0].labels.read(0, 256)[..., 0], expected)
    assert slides[0].means is None
    assert slides[1].means is not None


def test_a_slide_that_only_looks_like_a_mask(tmp_path):
    write_slide(tmp_path / "a_mask.tif", 0)
    assert [slide.name for slide in slides_and_masks.open_slides(tmp_path).items] == ["a_mask.tif"]


def test_outlines_of_a_scanned_slide(tmp_path, monkeypatch, capsys):
    """A mask of QuPath has pixels of the scanned area: rows 100:200 are rows 150:250 of level 0."""
    path = write_scanned(tmp_path / "a.scn", monkeypatch)
    ring = [[200, 100], [400, 100], [400, 200], [200, 200], [200, 100]]
    polygon = {"type": "Polygon", "coordinates": [ring]}
    (tmp_path / "a.geojson").write_text(json.dumps({"geometry": polygon}))
    expected = np.zeros((640, 800), np.uint8)
    expected[150:250, 300:500] = 1
    for masking in (None, Masking("grey")):
        slide = slides_and_masks.open_slide(path, tmp_path / "a.geojson", masking)
        np.testing.assert_array_equal(slide.labels.read(0, 640)[..., 0], expected)
        assert "shifted by x 100 and y 50 from the scanned area" in capsys.readouterr().err
    rule = OutlineRule(origin="level-0")
    slide = slides_and_masks.open_slide(path, tmp_path / "a.geojson", outlines=rule)
    moved = np.roll(expected, (-50, -100), (0, 1))
    np.testing.assert_array_equal(slide.labels.read(0, 640)[..., 0], moved)
