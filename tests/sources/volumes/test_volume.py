"""Views of volumes equal the same steps on arrays, for any box."""

from __future__ import annotations

from typing import Any

import nibabel
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from volume_files import OBLIQUE, SIZE, samples

import tfbig
from tfbig import sources
from tfbig.errors import SourceError
from tfbig.sources.volumes.grid import VoxelGrid
from tfbig.sources.volumes.raw import ArrayVolume

GRID = VoxelGrid.of_affine(OBLIQUE[:, [2, 1, 0, 3]])
ARRAY = samples("int16", (*SIZE, 2))


def volume() -> ArrayVolume:
    return ArrayVolume(ARRAY, grid=GRID)


def boxes(shape: tuple[int, ...]) -> Any:
    return st.tuples(
        *(
            st.tuples(st.integers(0, n - 1), st.integers(1, n)).map(
                lambda pair: (pair[0], max(pair[0] + 1, pair[1]))
            )
            for n in shape[:3]
        )
    )


@given(st.permutations(range(3)), st.tuples(*[st.booleans()] * 3), st.data())
def test_turned(order: Any, flips: Any, data: Any) -> None:
    turned = sources.Turned(volume(), order, flips)
    expected = np.flip(ARRAY.transpose(*order, 3), [n for n in range(3) if flips[n]])
    box = data.draw(boxes(turned.shape))
    np.testing.assert_array_equal(
        turned.read_box(*box), expected[tuple(slice(*each) for each in box)]
    )


@pytest.mark.parametrize("wanted", ["SAR", "RAS", "IPL", "ASL"])
def test_turned_as_nibabel_does(wanted: str) -> None:
    """Samples and affine equal those of nibabel, in any orientation."""
    turned = volume().turned(wanted)
    assert turned.orientation == wanted
    image = nibabel.Nifti1Image(ARRAY, np.array(GRID.affine))
    codes = nibabel.orientations
    moved = codes.ornt_transform(codes.io_orientation(image.affine), codes.axcodes2ornt(wanted))
    expected = image.as_reoriented(moved)
    np.testing.assert_array_equal(turned.read(0, turned.shape[0]), np.asarray(expected.dataobj))
    np.testing.assert_allclose(turned.affine, expected.affine, atol=1e-12)
    assert volume().turned("SPL").shape == volume().shape


def test_wrong_orientation() -> None:
    with pytest.raises(ValueError, match="orientation 'SAX': expected three letters"):
        volume().turned("SAX")
    with pytest.raises(SourceError, match="does not say how it is oriented"):
        ArrayVolume(ARRAY).turned("SAR")


def test_windows_are_along_the_first_two_axes() -> None:
    np.testing.assert_array_equal(volume().read_window((1, 3), (2, 4)), ARRAY[1:3, 2:4])
    np.testing.assert_array_equal(volume().read(2, 5), ARRAY[2:5])
    assert volume().read(2, 2).shape == (0, 6, 7, 2)
    assert volume().colour((0, 1), (0, 1)) is None and volume().background is None


def test_handles_and_arrays() -> None:
    opened = tfbig.open(ARRAY)
    assert isinstance(opened, sources.Volume)
    with opened.lent() as handle:
        assert sources.resolve(handle) is opened
        turned = sources.resolve(f"{handle}?axes=201")
        np.testing.assert_array_equal(turned.read(3, 5), ARRAY.transpose(2, 0, 1, 3)[3:5])
    with pytest.raises(SourceError, match="is a volume; expected an image"):
        opened.changed_handle(1)


@pytest.mark.parametrize("shape", [(2, 3), (2, 3, 4, 1, 1), (0, 3, 4)])
def test_shapes_of_no_volume(shape: tuple[int, ...]) -> None:
    with pytest.raises(SourceError, match="expected \\[planes, rows, columns\\]"):
        ArrayVolume(np.zeros(shape))


def test_values() -> None:
    values = ArrayVolume(ARRAY, scaling=(2.0, -1.0)).values()
    np.testing.assert_array_equal(values.read(0, 5), (2.0 * ARRAY - 1).astype("float32"))
    assert "6 x 7" in repr(values) or "5 x 6 x 7 x 2 float32" in repr(values)
