"""Measurements are those of scikit-image, and outlines those of rasterio, on the whole image."""

from __future__ import annotations

import numpy as np
import pytest
from rasterio import features
from scipy import ndimage
from skimage.measure import regionprops_table
from slide_files import noise

from tfbig import sources
from tfbig.results.instance_table import measured_instances


@pytest.mark.parametrize("strip_rows", [1, 7, 64, 1000])
@pytest.mark.parametrize("dtype", ["uint8", "uint16", "float32"])
def test_table_and_outlines(strip_rows: int, dtype: str) -> None:
    rng = np.random.default_rng(0)
    labels, count = ndimage.label(ndimage.gaussian_filter(rng.random((90, 70)), 2) > 0.5)
    image = noise(90, 70, 2).astype(dtype) * 3
    found = list(
        measured_instances(
            sources.open(labels.astype(np.int32)), sources.open(image), ["0", "1"], strip_rows
        )
    )
    assert len(found) == count > 10
    wanted = ("label", "centroid", "area", "bbox", "intensity_mean")
    table = regionprops_table(labels, image, wanted)
    by_label = {int(each.measured["label"]): each for each in found}
    for index, label in enumerate(table["label"].tolist()):
        for name, values in table.items():
            assert by_label[label].measured[name] == pytest.approx(values[index], rel=1e-6), name
        painted = features.rasterize([(by_label[label].outline, 1)], labels.shape)
        np.testing.assert_array_equal(painted > 0, labels == label)
        assert by_label[label].outline.is_valid


def test_no_instances() -> None:
    labels = sources.open(np.zeros((5, 4), np.int32))
    assert list(measured_instances(labels, sources.open(noise(5, 4, 1)), ["0"], 2)) == []
