"""Sets of pictures, digits and signals as they are downloaded: labels, splits, and what is missing."""

import dataset_folders
import pytest
from dataset_folders import SYNSETS, write_lines, write_picture

from tfbig import SourceError
from tfbig.cli.data import image_collections


def counts(table):
    return [len(table.of_split(split)) for split in ("train", "val", "test")]


@pytest.mark.parametrize("parts", [True, False])
def test_imagenet100(parts, tmp_path):
    dataset_folders.imagenet100(tmp_path, parts)
    found = image_collections.imagenet100(tmp_path, 0)
    (table,) = found.tables
    assert table.classes == SYNSETS[:4]
    assert counts(table) == [36, 4, 8]
    assert found.missing == ["4 of 100 folders of classes"]
    write_picture(tmp_path / "train.X4" / "n09999999" / "a.JPEG", 0)
    found = image_collections.imagenet100(tmp_path, 0)
    assert "val*/n09999999" in found.missing


def test_imagenette(tmp_path):
    dataset_folders.imagenette(tmp_path)
    found = image_collections.imagenette(tmp_path, 0)
    assert found.folder == tmp_path / "imagenette2-320"
    assert image_collections.imagenette(found.folder, 0) == found
    assert found.there == ["train: 120 pictures of 10 classes", "val: 30 pictures of 10 classes"]
    assert found.missing == []
    (found.folder / "val" / SYNSETS[8]).rename(found.folder / "val" / "n00000000")
    assert image_collections.imagenette(tmp_path, 0).missing == [
        "val/n03445777: pictures",
        "val/n00000000: is no class of Imagenette; remove it",
    ]


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_digits(ending, tmp_path):
    dataset_folders.qmnist(tmp_path, ending)
    found = image_collections.qmnist(tmp_path, 0)
    assert found.folder == tmp_path / "QMNIST" / "raw"
    assert found.there == ["train: 200 digits", "test: 200 digits"]
    next(found.folder.glob("qmnist-test-labels*")).unlink()
    (missing,) = image_collections.qmnist(tmp_path, 0).missing
    assert "but no qmnist-test-labels-idx1-ubyte" in missing
    (tmp_path / "mnist").mkdir()
    of_mnist = image_collections.ultramnist(dataset_folders.mnist(tmp_path / "mnist", ending), 0)
    assert of_mnist.folder == tmp_path / "mnist" and not of_mnist.missing
    assert len(image_collections.qmnist(of_mnist.folder, 0).notes) == 2
    (tmp_path / "empty").mkdir()
    assert image_collections.qmnist(tmp_path / "empty", 0).folder is None


def test_ultramnist_of_the_competition(tmp_path):
    dataset_folders.ultramnist(tmp_path)
    found = image_collections.ultramnist(tmp_path, 0)
    (table,) = found.tables
    assert counts(table) == [196, 28, 56]
    assert {row["label"] for row in table.rows} == set(map(str, range(28)))
    (tmp_path / "train" / "0000003.jpeg").unlink()
    assert image_collections.ultramnist(tmp_path, 0).missing == ["train/0000003.jpeg"]
    write_lines(tmp_path / "train.csv", "id,digit_sum", "0000001,28")
    with pytest.raises(SourceError, match=r"line 2: digit_sum '28'; expected 0 to 27"):
        image_collections.ultramnist(tmp_path, 0)


def test_uci_har(tmp_path):
    dataset_folders.uci_har(tmp_path)
    found = image_collections.uci_har(tmp_path, 0)
    assert found.folder == tmp_path / "UCI HAR Dataset"
    assert found.there[0] == "train: 60 windows of 9 signals and 128 samples"
    (found.folder / "test" / "Inertial Signals" / "body_gyro_z_test.txt").unlink()
    missing = image_collections.uci_har(tmp_path, 0).missing
    assert missing == ["test/Inertial Signals/body_gyro_z_test.txt"]
