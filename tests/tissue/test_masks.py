"""Tissue masks: by strips as by scikit-image on the whole image, and masks for tiling."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest
import tifffile
from hypothesis import given, settings
from hypothesis import strategies as st
from resource_limits import cheap
from samples import ROOT
from scipy import ndimage
from skimage import filters, measure, morphology
from slide_files import NDPI, PANCREAS, SMALL_SVS
from tissue_slides import write_slide

from tfbig.choices import TISSUE_METHODS
from tfbig.errors import SourceError
from tfbig.sources import ArraySource, Grayscale, Source, TiffSource, open_slide
from tfbig.tissue import masks, read_tissue
from tfbig.tissue.masks import Tissue, find_tissue, tissue_mask


def labels(slide: np.ndarray, *sizes: float, **options: int) -> np.ndarray:
    """`[H, W]` labels of an array by `tissue_mask`."""
    source = tissue_mask(ArraySource(slide), *sizes, **options)
    assert source.shape == (*slide.shape[:2], 1)
    assert source.dtype == np.uint8
    return source.read(0, slide.shape[0])[..., 0]


def whole_image_labels(
    slide: np.ndarray,
    factor: int = 8,
    white: float = 230,
    median: int = 3,
    erosion: int = 2,
    dilation: int = 4,
) -> np.ndarray:
    """`[H, W]` labels computed from the whole image with scikit-image."""
    rows, columns = slide.shape[:2]
    samples = slide.reshape(rows, columns, -1).astype(int)
    total = measure.block_reduce(samples.sum(-1), factor, np.sum)
    count = measure.block_reduce(np.full((rows, columns), samples.shape[-1]), factor, np.sum)
    mask = (total > 0) & (total <= white * count)  # means round, which matters at the threshold
    mask = filters.median(mask, np.ones((2 * median + 1,) * 2), mode="nearest") > 0
    mask = morphology.erosion(mask, morphology.disk(erosion))
    mask = morphology.dilation(mask, morphology.disk(dilation))
    mask = ndimage.binary_fill_holes(mask)
    return mask.repeat(factor, 0).repeat(factor, 1)[:rows, :columns].astype(np.uint8)


def blobs(*shape: int, seed: int = 0) -> np.ndarray:
    """A white slide with dark blobs of several sizes, holes, specks and noise."""
    noise = np.random.default_rng(seed)
    smooth = ndimage.gaussian_filter(noise.random(shape[:2]), 14)
    bright = np.where(smooth > np.quantile(smooth, 0.6), 150, 240)
    speckled = np.where(noise.random(shape[:2]) < 0.01, 20, bright)
    spread = noise.integers(-10, 11, shape)
    return (speckled.reshape(*shape[:2], *[1] * (len(shape) - 2)) + spread).astype(np.uint8)


@pytest.mark.parametrize("shape", [(600, 700, 3), (603, 701, 3), (1100, 130), (5, 9, 3), (1, 1)])
def test_equals_whole_image(shape: tuple[int, ...]) -> None:
    slide = blobs(*shape)
    expected = whole_image_labels(slide)
    np.testing.assert_array_equal(labels(slide), expected)
    if slide.size > 1000:
        assert 0.1 < expected.mean() < 0.9


@given(
    rows=st.integers(1, 90),
    columns=st.integers(1, 90),
    factor=st.integers(1, 9),
    median=st.integers(0, 2),
    erosion=st.integers(0, 2),
    dilation=st.integers(0, 3),
    seed=st.integers(0, 9),
)
@settings(max_examples=60, deadline=None)
def test_random_sizes(
    rows: int, columns: int, factor: int, median: int, erosion: int, dilation: int, seed: int
) -> None:
    slide = np.random.default_rng(seed).integers(205, 256, (rows, columns, 3), dtype=np.uint8)
    sizes = {"median": median, "erosion": erosion, "dilation": dilation}
    actual = labels(slide, factor, 230, **sizes)
    np.testing.assert_array_equal(actual, whole_image_labels(slide, factor, 230, **sizes))


@pytest.mark.parametrize("strip_rows", [1, 8, 20, 64])
def test_strip_height(monkeypatch: pytest.MonkeyPatch, strip_rows: int) -> None:
    slide = blobs(203, 150, 3)
    expected = labels(slide)
    monkeypatch.setattr(masks, "_STRIP_ROWS", strip_rows)
    np.testing.assert_array_equal(labels(slide), expected)


def test_square_with_hole() -> None:
    slide = np.full((400, 400, 3), 245, np.uint8)
    slide[80:320, 80:320] = 120
    slide[160:240, 160:240] = 245  # a hole: filled
    slide[320:400, 0:16] = 100  # 10 x 2 small pixels: too thin to survive
    slide[0:8, 200:208] = 0  # a speck
    actual = labels(slide, erosion=2, dilation=2)
    assert actual[160:240, 160:240].all()
    inside = np.zeros((400, 400), np.uint8)
    inside[80:320, 80:320] = 1
    assert (actual <= inside).all()  # an opening adds nothing
    corners = inside.astype(int).sum() - actual.astype(int).sum()
    assert 0 < corners <= 4 * 12 * 64  # the median and the disks round the four corners only


def test_hole_open_to_edge() -> None:
    slide = np.full((400, 400), 245, np.uint8)
    slide[80:320, 80:320] = 120
    slide[160:240, 160:400] = 245
    assert not labels(slide)[190:210, 200:300].any()


def test_no_erosion_at_edge() -> None:
    assert labels(np.full((60, 60), 100, np.uint8)).all()


def test_white_threshold() -> None:
    plain = {"median": 0, "erosion": 0, "dilation": 0}
    slide = np.repeat(np.array([[229, 230, 231, 255, 1, 0]], np.uint8), 8, 1).repeat(8, 0)
    expected = [[1, 1, 0, 0, 1, 0]]
    np.testing.assert_array_equal(labels(slide, 8, 230, **plain)[::8, ::8], expected)
    slide[0, 8] = 231  # one sample of the block of 230 above it: the mean is above 230
    np.testing.assert_array_equal(labels(slide, 8, 230, **plain)[0, ::8], [1, 0, 0, 0, 1, 0])
    np.testing.assert_array_equal(labels(slide, 8, 254.9, **plain)[0, ::8], [1, 1, 1, 0, 1, 0])


def test_mean_over_channels() -> None:
    plain = {"median": 0, "erosion": 0, "dilation": 0}
    slide = np.broadcast_to(np.uint8([255, 255, 180]), (8, 8, 3))  # mean 230
    assert labels(slide, **plain).all()
    assert not labels(np.broadcast_to(np.uint8([255, 255, 181]), (8, 8, 3)), **plain).any()


def test_rows_of_labels() -> None:
    slide = blobs(203, 150, 3)
    source = tissue_mask(ArraySource(slide))
    expected = source.read(0, 203)
    for start, stop in ((0, 1), (7, 9), (100, 203), (202, 203)):
        np.testing.assert_array_equal(source.read(start, stop), expected[start:stop])


class RecordingSource(Source):
    """A source that records the rows that are read."""

    def __init__(self, slide: np.ndarray) -> None:
        super().__init__(slide.shape, slide.dtype, "watched")
        self.slide = slide
        self.reads: list[tuple[int, int]] = []

    def _read(self, start: int, stop: int) -> np.ndarray:
        self.reads.append((start, stop))
        return self.slide[start:stop]


def test_reads_each_strip_once() -> None:
    source = RecordingSource(np.full((1300, 10, 3), 100, np.uint8))
    mask = tissue_mask(source)
    assert source.reads == [(0, 512), (512, 1024), (1024, 1300)]
    mask.read(0, 1300)
    assert len(source.reads) == 3
    source = RecordingSource(np.full((1300, 10, 3), 100, np.uint8))
    tissue_mask(source, factor=600)
    assert source.reads == [(0, 600), (600, 1200), (1200, 1300)]


@pytest.mark.parametrize(("shape", "dtype"), [((4, 5, 3), "uint16"), ((4, 5, 4), "uint8")])
def test_unsuitable_slides(shape: tuple[int, ...], dtype: str) -> None:
    message = f"array: has {shape[2]} channels of {dtype}; expected a slide of 1 or 3"
    with pytest.raises(SourceError, match=message):
        tissue_mask(ArraySource(np.zeros(shape, dtype)))


@pytest.mark.parametrize(("factor", "median"), [(0, 1), (8, -1)])
def test_invalid_sizes(factor: int, median: int) -> None:
    message = rf"factor {factor} and .* \({median}, 2, 4\); expected a factor of at least 1"
    with pytest.raises(ValueError, match=message):
        tissue_mask(ArraySource(np.zeros((4, 5), np.uint8)), factor, median=median)


@pytest.mark.parametrize(("level", "factor"), [(1, 2), pytest.param(0, 8, marks=pytest.mark.slow)])
def test_real_slide(level: int, factor: int) -> None:
    if not PANCREAS.exists():
        pytest.skip(f"{PANCREAS.relative_to(ROOT)} is not here")
    slide = tifffile.imread(PANCREAS, series=0, level=level)
    source = tissue_mask(TiffSource(PANCREAS, level), factor)
    actual = source.read(0, source.shape[0])[..., 0]
    np.testing.assert_array_equal(actual, whole_image_labels(slide, factor))
    assert 0.15 < actual.mean() < 0.25  # two needle cores on a white slide
    _, num_pieces = ndimage.label(actual)
    assert num_pieces == 2
    gray = tissue_mask(Grayscale(TiffSource(PANCREAS, level)), factor)
    assert (gray.read(0, gray.shape[0])[..., 0] == actual).mean() > 0.98


@pytest.mark.parametrize("method", TISSUE_METHODS)
def test_find_tissue(tmp_path: Path, method: str) -> None:
    slide = write_slide(
        tmp_path / "a.tif", resolution=(5000, 5000), resolutionunit="CENTIMETER"
    )  # 2 um
    actual = find_tissue(slide, method)
    assert actual.mask.shape == (300, 225)  # at 8 um
    expected = np.zeros((300, 225), bool)
    expected[50:175, 75:200] = True
    rim = ndimage.binary_dilation(expected) & ~ndimage.binary_erosion(expected)
    np.testing.assert_array_equal(actual.mask & ~rim, expected & ~rim)
    assert actual.share == actual.mask.mean()


def test_unknown_resolution(tmp_path: Path) -> None:
    actual = find_tissue(write_slide(tmp_path / "a.tif"))
    assert actual.mask.shape == (1200, 900)
    assert actual.mask[210:690, 310:790].all()
    assert not actual.mask[:190].any()


@pytest.mark.parametrize(("path", "low", "high"), [(PANCREAS, 0.15, 0.6), (NDPI, 0.02, 0.6)])
def test_find_tissue_on_real_slides(path: Path, low: float, high: float) -> None:
    slide = open_slide(path)
    actual = find_tissue(slide, dark=path is NDPI)
    assert low < actual.share < high
    small = slide.scaled(masks.small_step(slide))
    values = masks.gray(small.read(0, small.shape[0]))
    inside, outside = values[actual.mask].mean(), values[~actual.mask].mean()
    assert inside > 3 * outside if path is NDPI else inside < outside - 30


def test_small_objects_and_holes(tmp_path: Path) -> None:
    base = np.full((300, 300, 3), 240, np.uint8)
    base[50:250, 50:250] = (150, 80, 160)
    base[100:104, 100:104] = 240
    base[10:14, 10:14] = (150, 80, 160)
    tifffile.imwrite(tmp_path / "a.tif", base, photometric="rgb")
    slide = open_slide(tmp_path / "a.tif")
    expected = np.zeros((300, 300), bool)
    expected[50:250, 50:250] = True
    changed = find_tissue(slide).mask != expected
    assert changed.sum() <= 4  # corners, by the median
    assert find_tissue(slide, smallest=1, holes=1).mask[11, 11]
    assert not find_tissue(slide, smallest=1, holes=1).mask[102, 102]


def test_find_tissue_invalid_arguments(tmp_path: Path) -> None:
    slide = write_slide(tmp_path / "a.tif")
    for options in ({"method": "hue"}, {"method": "grey", "dark": True}):
        with pytest.raises(
            ValueError, match=r"received method .*expected 'colour' or 'otsu', or 'grey'"
        ):
            find_tissue(slide, **options)
    tifffile.imwrite(tmp_path / "b.tif", np.zeros((30, 30), np.uint16))
    with pytest.raises(
        SourceError, match=r"b\.tif: has 1 channel of uint16; tissue is found in 1 or 3"
    ):
        find_tissue(open_slide(tmp_path / "b.tif"))


def test_dark_background() -> None:
    with pytest.raises(
        SourceError, match=r"fluorescence\.ndpi: its background is dark, .* Pass dark=True"
    ):
        find_tissue(open_slide(NDPI))


def test_shares() -> None:
    rng = np.random.default_rng(0)
    mask = rng.random((20, 30)) < 0.4
    actual = Tissue(mask, (200, 600))  # 10 x 20 pixels of level 0 in one
    coords = np.concatenate(
        [rng.integers(0, [560, 160], (50, 2)), [[0, 0], [560, 160], [-20, -20]]]
    )
    whole = np.repeat(np.repeat(mask, 10, 0), 20, 1).astype(float)
    padded = np.pad(whole, 64)
    expected = [padded[y + 64 : y + 104, x + 64 : x + 104].mean() for x, y in coords]
    np.testing.assert_allclose(actual.shares(coords, 40), expected, atol=1e-12)


@cache
def tissue_in(path: Path) -> Tissue:
    """Return the tissue of a slide, found once for all tests."""
    return find_tissue(open_slide(path))


SLOW = [
    pytest.param(name, marks=pytest.mark.slow)
    for name in ("esophagus_eosinophilic", "gastritis_lymphocytic")
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("contrast", "least"), [(0.5, 0.93), pytest.param(0.3, 0.7, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("name", ["pancreas_pdac_1", *SLOW])
def test_pale_half_of_a_slide(name: str, contrast: float, least: float, tmp_path: Path) -> None:
    """Pale tissue is found beside stained tissue; Otsu's threshold leaves up to all of it out."""
    path = ROOT / "examples" / "data" / f"{name}.tif"
    slide = open_slide(path)
    small = slide.scaled(masks.small_step(slide))
    image = small.read(0, small.shape[0]).astype(float)
    right = np.s_[:, image.shape[1] // 2 :]
    image[right] = 243 + contrast * (image[right] - 243)  # the grey value of the glass of all three
    np.save(tmp_path / "pale.npy", np.rint(image).astype(np.uint8))
    pale = open_slide(tmp_path / "pale.npy", mpp=masks.MPP)
    stained, found = tissue_in(path), find_tissue(pale)
    expected = stained.mask[right]
    by_otsu = find_tissue(pale, "otsu").mask[right]
    assert (found.mask[right] & expected).sum() > least * expected.sum()
    assert (by_otsu & expected).sum() < 0.82 * expected.sum()
    assert stained.agreement > found.agreement
    if contrast < 0.5:
        assert found.agreement < 0.9


@pytest.mark.slow
@pytest.mark.parametrize(
    "path",
    [*sorted((ROOT / "examples" / "data").glob("*.tif")), SMALL_SVS],
    ids=lambda path: path.stem,
)
def test_agrees_with_outlines_drawn_by_hand(path: Path) -> None:
    slide = open_slide(path)
    outlines = ROOT / "tests" / "files" / "outlines" / f"{path.stem}.geojson"
    drawn, found = read_tissue(outlines, slide).mask, tissue_in(path).mask
    dice = 2 * (drawn & found).sum() / (drawn.sum() + found.sum())
    assert dice > 0.93
    assert (drawn & found).sum() > 0.96 * drawn.sum()


def test_shadows_dust_and_tinted_glass(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    base = np.full((400, 300, 3), (244, 240, 232), float) + rng.normal(0, 1.5, (400, 300, 3))
    base[:40] *= 0.6  # the shadow of the edge of a cover slip
    base[100:110, 20:30] *= 0.3  # dust
    base[200:300, 100:200] *= (0.95, 0.88, 0.96)  # pale eosin
    np.save(tmp_path / "a.npy", base.clip(0, 255).astype(np.uint8))
    actual = find_tissue(open_slide(tmp_path / "a.npy", mpp=8))
    expected = np.zeros((400, 300), bool)
    expected[200:300, 100:200] = True
    assert (actual.mask != expected).mean() < 0.005


def test_slide_covered_by_tissue(tmp_path: Path) -> None:
    base = np.full((100, 100, 3), (150, 80, 160), np.uint8)
    np.save(tmp_path / "a.npy", base)
    assert find_tissue(open_slide(tmp_path / "a.npy")).share == 1
    np.save(tmp_path / "b.npy", np.full((100, 100, 3), 243, np.uint8))
    assert find_tissue(open_slide(tmp_path / "b.npy")).share == 0


@pytest.mark.slow
def test_memory_of_a_large_image(tmp_path: Path) -> None:
    """6000 x 6000 pixels at 8 um are a slide of 48 mm."""
    rng = np.random.default_rng(0)
    tiles = rng.integers(200, 256, (600, 600, 3), np.uint8)
    np.save(tmp_path / "a.npy", np.tile(tiles, (5, 5, 1)))
    with cheap(60, 700):
        find_tissue(open_slide(tmp_path / "a.npy", mpp=8))
