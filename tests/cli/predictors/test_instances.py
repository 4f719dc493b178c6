"""Instances of slides: with a network that returns its input, they are those of the image itself."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import shapely.geometry
import tifffile
import zarr
from scipy import ndimage
from skimage.measure import regionprops_table

from tfbig import sources
from tfbig.cli.main import main
from tfbig.cli.predictors import instances
from tfbig.cli.settings.slide_settings import PredictSettings
from tfbig.errors import SourceError
from tfbig.results.instances import Thresholds, label_strips
from tfbig.streaming.model import StreamedModel

SHAPE = (200, 150)


@pytest.fixture(scope="module")
def identity(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network whose foreground and distance are the two channels of the image."""
    image = keras.Input((None, None, 2))
    path = tmp_path_factory.mktemp("identity") / "identity.keras"
    keras.Model(image, keras.layers.Rescaling(1 / 255)(image)).save(path)
    return path


def maps() -> np.ndarray:
    """Return smooth random maps, `[H, W, 2]`."""
    rng = np.random.default_rng(0)
    smooth = [ndimage.gaussian_filter(rng.random(SHAPE), 3) for _ in range(2)]
    scaled = [(each - each.min()) / (each.max() - each.min()) for each in smooth]
    return np.rint(np.stack(scaled, 2) * 255).astype(np.uint8)


def predicted(model: Path, slide: Path, out: Path, *flags: str) -> int:
    words = ["predict", str(model), str(slide), "--instances", "--out", str(out), "--quiet"]
    return int(main([*words, *flags]))


def table(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


def test_files_of_a_slide(tmp_path: Path, identity: Path) -> None:
    image = maps()
    source = sources.open(image)
    source.mpp = (0.5, 0.5)
    sources.write_ome_zarr(tmp_path / "a.zarr", source, channel_names=["DAPI", "CD3"])
    out = tmp_path / "out"
    flags = ("--threshold", "0.4", "--marker-threshold", "0.6", "--labels", "nuclei")
    assert predicted(identity, tmp_path / "a.zarr", out, *flags) == 0
    expected = next(label_strips([image], Thresholds(0.4 * 255, 0.6 * 255)))
    np.testing.assert_array_equal(tifffile.imread(out / "a.ome.tif"), expected)
    stored = zarr.open_array(tmp_path / "a.zarr/labels/nuclei/0", mode="r")
    np.testing.assert_array_equal(stored[:], expected)
    rows = table(out / "a_instances.csv")
    real = regionprops_table(expected, image, ("label", "area", "centroid", "intensity_mean"))
    assert len(rows) == expected.max() == len(real["label"]) > 20
    for row in rows:
        place = int(row["label"]) - 1
        assert int(row["area"]) == real["area"][place]
        assert float(row["area_um2"]) == pytest.approx(real["area"][place] / 4)
        assert float(row["centroid-1"]) == pytest.approx(real["centroid-1"][place], rel=1e-5)
        mean = real["intensity_mean-1"][place]
        assert float(row["intensity_mean-CD3"]) == pytest.approx(mean, rel=1e-5)
    collection = json.loads((out / "a.geojson").read_text())
    areas = {f["properties"]["measurements"]["label"]: f for f in collection["features"]}
    assert len(areas) == len(rows)
    assert collection["features"][0]["properties"]["objectType"] == "detection"
    (slide,) = table(out / "predictions.csv")
    assert int(slide["instances"]) == len(rows)
    assert float(slide["share_instances"]) == pytest.approx((expected > 0).mean())
    assert (out / "a.png").exists()
    assert "already finished" in _printed(identity, tmp_path / "a.zarr", out, flags)


def test_maps_are_kept_if_labels_fail(
    tmp_path: Path, identity: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The network does not run again for the same slide, but for a changed one; in the end its maps are removed."""
    np.save(tmp_path / "a.npy", maps())
    out, runs = tmp_path / "out", []

    def full(*arguments: object, **options: object) -> None:
        raise SourceError("the disk is full")

    def counted(model: StreamedModel, *arguments: Any) -> Any:
        runs.append(arguments)
        return predict_to(model, *arguments)

    predict_to = StreamedModel.predict_to
    monkeypatch.setattr(StreamedModel, "predict_to", counted)
    with monkeypatch.context() as patch:
        patch.setattr(sources, "write_ome_tiff", full)
        assert predicted(identity, tmp_path / "a.npy", out) == 3
        assert predicted(identity, tmp_path / "a.npy", out) == 3
        assert len(runs) == 1
        changed = maps()[::-1]
        np.save(tmp_path / "a.npy", changed)
        assert predicted(identity, tmp_path / "a.npy", out) == 3
        assert len(runs) == 2
    assert predicted(identity, tmp_path / "a.npy", out) == 0
    assert len(runs) == 2
    expected = next(label_strips([changed], Thresholds(127.5, 127.5)))
    np.testing.assert_array_equal(tifffile.imread(out / "a.ome.tif"), expected)
    assert not list(out.glob(".a*"))


def _printed(model: Path, slide: Path, out: Path, flags: tuple[str, ...]) -> str:
    import contextlib
    import io

    with contextlib.redirect_stdout(io.StringIO()) as text:
        predicted(model, slide, out, *flags)
    return text.getvalue()


def test_intensities_of_16_bits_are_those_of_the_file(tmp_path: Path, identity: Path) -> None:
    image = maps().astype(np.uint16) * 100 + 7
    stack = np.zeros((3, 3, *SHAPE), np.uint16)
    stack[1, 2], stack[1, 0] = image[..., 0], image[..., 1]
    names = {"Name": ["distance", "none", "foreground"]}
    metadata = {"axes": "ZCYX", "Channel": names}
    path = tmp_path / "a.ome.tif"
    tifffile.imwrite(path, stack, ome=True, metadata=metadata, photometric="minisblack")
    flags = ["--channels", "foreground", "distance", "--z", "1", "--percentiles", "0", "100"]
    assert predicted(identity, path, tmp_path / "out", *flags) == 0
    expected = next(label_strips([maps()], Thresholds(127.5, 127.5)))
    np.testing.assert_array_equal(tifffile.imread(tmp_path / "out/a.ome.tif"), expected)
    real = regionprops_table(expected, image, ("intensity_mean",))
    for row in table(tmp_path / "out/a_instances.csv"):
        mean = real["intensity_mean-0"][int(row["label"]) - 1]
        assert float(row["intensity_mean-foreground"]) == pytest.approx(mean, rel=1e-5)


def test_mistakes_and_no_instances(
    tmp_path: Path, identity: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "gray.npy", np.zeros((64, 64), np.uint8))
    assert predicted(identity, tmp_path / "gray.npy", tmp_path / "out") == 3
    assert (
        "has 1 channel of uint8; the network expects 2 of uint8. Use images of 2 channels, or a network for 1."
        in capsys.readouterr().err
    )
    np.save(tmp_path / "more.npy", np.zeros((64, 64, 3), np.uint16))
    assert predicted(identity, tmp_path / "more.npy", tmp_path / "more") == 3
    assert (
        "has 3 channels of uint16; the network expects 2 of uint8. Choose 2 channels with --channels. Use --percentiles"
        in capsys.readouterr().err
    )
    stack = np.zeros((4, 64, 64), np.uint8)
    tifffile.imwrite(tmp_path / "s.ome.tif", stack, ome=True, metadata={"axes": "ZYX"})
    assert predicted(identity, tmp_path / "s.ome.tif", tmp_path / "stack") == 3
    assert (
        "is a stack of 4 planes along z; expected one image. Use --z 0, or another plane up to 3, or --z max"
        in (capsys.readouterr().err)
    )
    np.save(tmp_path / "empty.npy", np.zeros((64, 64, 2), np.uint8))
    assert predicted(identity, tmp_path / "empty.npy", tmp_path / "empty") == 0
    assert table(tmp_path / "empty/empty_instances.csv") == []
    assert json.loads((tmp_path / "empty/empty.geojson").read_text())["features"] == []


@pytest.mark.parametrize(
    ("flag", "of_run", "expected"),
    [(0.0, 0.3, 0.0), (None, 0.3, 0.3), (None, 0.0, 0.0), (None, None, 0.5)],
)
def test_marker_threshold(flag: float | None, of_run: float | None, expected: float) -> None:
    """A threshold of 0 is a threshold; the flag wins over the run, and the run over the default."""
    settings = PredictSettings(model="", slides=(), out="", marker_threshold=flag)
    config = {} if of_run is None else {"marker_threshold": of_run}
    assert instances.with_run(settings, config).marker_threshold == expected


def test_outlines_of_pixels_that_are_not_square(tmp_path: Path, identity: Path) -> None:
    """An instance at 0.5 um, in rows 100:200 and columns 400:500 of level 0 of 0.25 x 0.2 um."""
    image = np.zeros((320, 640, 2), np.uint8)
    image[100:200, 400:500] = 255
    source = sources.open(image)
    source.mpp = (0.25, 0.2)
    sources.write_ome_zarr(tmp_path / "a.zarr", source, channel_names=["DAPI", "CD3"])
    out = tmp_path / "out"
    assert predicted(identity, tmp_path / "a.zarr", out, "--mpp", "0.5") == 0
    (feature,) = json.loads((out / "a.geojson").read_text())["features"]
    bounds = shapely.geometry.shape(feature["geometry"]).bounds
    assert bounds == pytest.approx((400, 100, 500, 200), abs=3)
    (row,) = table(out / "a_instances.csv")
    assert float(row["area_um2"]) == pytest.approx(100 * 100 * 0.25 * 0.2, rel=0.05)
