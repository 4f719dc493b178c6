"""The tissue mask made by strips is the one that scikit-image makes from the whole image."""

from __future__ import annotations

import numpy as np
import pytest
import tifffile
from hypothesis import given, settings
from hypothesis import strategies as st
from samples import ROOT
from scipy import ndimage
from skimage import filters, measure, morphology

from tfbig.errors import SourceError
from tfbig.sources import ArraySource, Grayscale, Source, TiffSource
from tfbig.tissue import masks
from tfbig.tissue.masks import tissue_mask

SLIDE = ROOT / "examples" / "data" / "pancreas_pdac_1.tif"


def labels(slide: np.ndarray, *sizes: float, **options: int) -> np.ndarray:
    """`[H, W]` labels of a slide in memory."""
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
    """The same from the whole image, with scikit-image's operations."""
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
def test_equals_the_whole_image(shape: tuple[int, ...]) -> None:
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
def test_equals_the_whole_image_for_any_sizes(
    rows: int, columns: int, factor: int, median: int, erosion: int, dilation: int, seed: int
) -> None:
    slide = np.random.default_rng(seed).integers(205, 256, (rows, columns, 3), dtype=np.uint8)
    sizes = {"median": median, "erosion": erosion, "dilation": dilation}
    got = labels(slide, factor, 230, **sizes)
    np.testing.assert_array_equal(got, whole_image_labels(slide, factor, 230, **sizes))


@pytest.mark.parametrize("strip_rows", [1, 8, 20, 64])
def test_any_strips_agree(monkeypatch: pytest.MonkeyPatch, strip_rows: int) -> None:
    slide = blobs(203, 150, 3)
    expected = labels(slide)
    monkeypatch.setattr(masks, "_STRIP_ROWS", strip_rows)
    np.testing.assert_array_equal(labels(slide), expected)


def test_a_square_with_a_hole() -> None:
    slide = np.full((400, 400, 3), 245, np.uint8)
    slide[80:320, 80:320] = 120
    slide[160:240, 160:240] = 245  # a hole: filled
    slide[320:400, 0:16] = 100  # 10 x 2 small pixels: too thin to survive
    slide[0:8, 200:208] = 0  # a speck
    got = labels(slide, erosion=2, dilation=2)
    assert got[160:240, 160:240].all()
    inside = np.zeros((400, 400), np.uint8)
    inside[80:320, 80:320] = 1
    assert (got <= inside).all()  # an opening adds nothing
    corners = inside.astype(int).sum() - got.astype(int).sum()
    assert 0 < corners <= 4 * 12 * 64  # the median and the disks round the four corners only


def test_a_hole_that_is_open_to_the_edge_is_background() -> None:
    slide = np.full((400, 400), 245, np.uint8)
    slide[80:320, 80:320] = 120
    slide[160:240, 160:400] = 245
    assert not labels(slide)[190:210, 200:300].any()


def test_tissue_up_to_the_edge_is_not_eroded() -> None:
    assert labels(np.full((60, 60), 100, np.uint8)).all()


def test_white_is_the_last_value_of_tissue() -> None:
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


def test_labels_are_enlarged_as_they_are_read() -> None:
    slide = blobs(203, 150, 3)
    source = tissue_mask(ArraySource(slide))
    expected = source.read(0, 203)
    for start, stop in ((0, 1), (7, 9), (100, 203), (202, 203)):
        np.testing.assert_array_equal(source.read(start, stop), expected[start:stop])


class Watched(Source):
    """Counts the rows that are read."""

    def __init__(self, slide: np.ndarray) -> None:
        super().__init__(slide.shape, slide.dtype, "watched")
        self.slide = slide
        self.reads: list[tuple[int, int]] = []

    def _read(self, start: int, stop: int) -> np.ndarray:
        self.reads.append((start, stop))
        return self.slide[start:stop]


def test_the_slide_is_read_once_by_strips() -> None:
    source = Watched(np.full((1300, 10, 3), 100, np.uint8))
    mask = tissue_mask(source)
    assert source.reads == [(0, 512), (512, 1024), (1024, 1300)]
    mask.read(0, 1300)
    assert len(source.reads) == 3
    source = Watched(np.full((1300, 10, 3), 100, np.uint8))
    tissue_mask(source, factor=600)
    assert source.reads == [(0, 600), (600, 1200), (1200, 1300)]


@pytest.mark.parametrize(("shape", "dtype"), [((4, 5, 3), "uint16"), ((4, 5, 4), "uint8")])
def test_slides_of_another_kind(shape: tuple[int, ...], dtype: str) -> None:
    message = f"array: has {shape[2]} channels of {dtype}; tissue_mask expects a slide of 1 or 3"
    with pytest.raises(SourceError, match=message):
        tissue_mask(ArraySource(np.zeros(shape, dtype)))


@pytest.mark.parametrize(("factor", "median"), [(0, 1), (8, -1)])
def test_sizes_that_do_not_work(factor: int, median: int) -> None:
    message = rf"factor {factor} and .* \({median}, 2, 4\); expected a factor of at least 1"
    with pytest.raises(ValueError, match=message):
        tissue_mask(ArraySource(np.zeros((4, 5), np.uint8)), factor, median=median)


def test_a_real_slide() -> None:
    if not SLIDE.exists():
        pytest.skip(f"{SLIDE.relative_to(ROOT)} is not here")
    slide = tifffile.imread(SLIDE, series=0, level=0)
    source = tissue_mask(TiffSource(SLIDE))
    got = source.read(0, source.shape[0])[..., 0]
    np.testing.assert_array_equal(got, whole_image_labels(slide))
    assert 0.15 < got.mean() < 0.25  # two needle cores on a white slide
    _, num_pieces = ndimage.label(got)
    assert num_pieces == 2
    gray = tissue_mask(Grayscale(TiffSource(SLIDE)))
    assert (gray.read(0, gray.shape[0])[..., 0] == got).mean() > 0.98
