"""Sets of pictures as they are downloaded: labels, splits, and what is missing."""

import dataset_folders
import pytest
from dataset_folders import SYNSETS, write_picture

from tfbig.cli.data.collections import imagenet_100


def counts(table):
    return [len(table.of_split(split)) for split in ("train", "val", "test")]


@pytest.mark.parametrize("parts", [True, False])
def test_imagenet100(parts, tmp_path):
    dataset_folders.imagenet100(tmp_path, parts)
    found = imagenet_100.read(tmp_path, 0)
    (table,) = found.tables
    assert table.classes == SYNSETS[:4]
    assert counts(table) == [36, 4, 8]
    assert found.missing == ["4 of 100 folders of classes"]
    write_picture(tmp_path / "train.X4" / "n09999999" / "a.JPEG", 0)
    found = imagenet_100.read(tmp_path, 0)
    assert "val*/n09999999" in found.missing
