"""`tfbig tile`: tiles, files, flags."""

import json

import numpy as np
import pytest
import yaml
from cli_runs import write_square
from PIL import Image

from tfbig.cli.main import main
from tfbig.results import figures, geojson, slide_viewer
from tfbig.sources import read_coords

REPORT = {"report.html", "versions.json", "views"}
"""Files of every run."""


def test_folder(slides, tmp_path, capsys, usual_figures):
    out = tmp_path / "out"
    flags = ("--out", str(out), "--tile", "64", "--min-tissue", "1.0")
    assert main(["tile", str(slides), *flags]) == 0
    output = capsys.readouterr().out
    assert "a.tif: 16 tiles of 64 x 64 pixels, 1 x the pixels of level 0, 29.8% tissue" in output
    names = {p.name for p in out.iterdir()}
    of_slides = {f"{name}.{suffix}" for name in "ab" for suffix in ("h5", "png", "geojson")}
    assert names == {*of_slides, "tile.yaml", ".lock", ".tfbig-files", *REPORT}
    coords = read_coords(out / "a.h5")
    assert len(coords.coords) == 16
    assert (coords.coords.min(), coords.coords.max()) == (192, 384)
    with Image.open(out / "a.png") as picture:
        assert max(picture.size) > 800
    legends = [overlay.legend for overlay in slide_viewer.read_views(out)[0].overlays]
    colours = map(geojson.hex_of, (figures.TILES, figures.TISSUE))  # those of the picture
    assert legends == [
        ((colour, name),) for colour, name in zip(colours, ("tile", "tissue"), strict=True)
    ]
    assert yaml.safe_load((out / "tile.yaml").read_text())["mpp"] == 0.5
    stamps = {p.name: p.stat().st_mtime_ns for p in out.iterdir()}
    assert main(["tile", str(slides), *flags]) == 0
    assert "2 of 2 slides are already finished" in capsys.readouterr().out
    assert {p.name: p.stat().st_mtime_ns for p in out.iterdir()} == stamps
    assert main(["tile", str(slides), *flags[:-1], "0.5"]) == 1
    assert (
        "holds results of other settings: min_tissue. Use another --out" in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("flags", "count"),
    [
        pytest.param(("--tissue", "grey"), 16, marks=pytest.mark.slow),
        (("--tissue", "grey-tiles"), 16),
        pytest.param(("--tissue", "none"), 64, marks=pytest.mark.slow),
        (("--tissue", "none", "--max-pen", "0.5"), 64),
        (("--tissue", "none", "--overlap", "30", "--edge", "10"), 144),
        (("--tissue", "none", "--min-sharpness", "1"), 48),
    ],
)
def test_tissue_and_quality_flags(tmp_path, flags, count):
    write_square(tmp_path / "a.tif")
    out = tmp_path / "out"
    common = ("--tile", "80", "--min-tissue", "0.9", "--out", str(out))
    assert main(["tile", str(tmp_path / "a.tif"), *common, *flags]) == 0
    assert len(read_coords(out / "a.h5").coords) == count


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--mpp", "1", "--level", "0"), "expected one of --mpp, --magnification, --level"),
        (("--tile", "64", "--overlap", "64"), "--overlap 64: expected less than --tile 64"),
    ],
)
def test_conflicting_flags(slides, tmp_path, capsys, flags, message):
    assert main(["tile", str(slides), "--out", str(tmp_path / "out"), *flags]) == 1
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    "flags",
    [("--tile", "0"), ("--min-tissue", "2"), ("--mpp", "-1"), ("--tissue", "all"), ("--til", "5")],
)
def test_wrong_flags(slides, tmp_path, flags):
    with pytest.raises(SystemExit) as ended:
        main(["tile", str(slides), "--out", str(tmp_path / "out"), *flags])
    assert ended.value.code == 2


@pytest.mark.slow
def test_corrected_outlines(slides, tmp_path, capsys):
    """The outlines of a run can be changed and used instead of a method."""
    flags = ("--tile", "64", "--min-tissue", "1.0")
    assert main(["tile", str(slides), "--out", str(tmp_path / "found"), *flags]) == 0
    for path in (tmp_path / "found").glob("*.geojson"):
        content = json.loads(path.read_text())
        (feature,) = content["features"]
        (outline,) = feature["geometry"]["coordinates"]
        assert feature["properties"]["classification"]["name"] == "Tissue"
        middle = np.mean(outline, axis=0)[1]
        feature["geometry"]["coordinates"] = [[[x, min(y, middle)] for x, y in outline]]
        path.write_text(json.dumps(content))
    capsys.readouterr()
    again = ("--out", str(tmp_path / "again"), "--tissue", str(tmp_path / "found"))
    assert main(["tile", str(slides), *again, *flags]) == 0
    assert "a.tif: 4 tiles" in capsys.readouterr().out
    (tmp_path / "found" / "b.geojson").unlink()
    more = ("--out", str(tmp_path / "more"), "--tissue", str(tmp_path / "found"))
    assert main(["tile", str(slides), *more, *flags]) == 3
    assert "b.geojson: is not a GeoJSON file" in capsys.readouterr().err


def test_uncertain_tissue_is_reported(tmp_path, capsys):
    base = np.full((800, 400, 3), 243, np.uint8)
    base[100:300, 100:300] = (150, 80, 160)
    base[500:700, 100:300] = (238, 222, 236)  # pale
    np.save(tmp_path / "a.npy", base)
    flags = ("--tile", "64", "--slide-mpp", "8", "--mpp", "8", "--out", str(tmp_path / "out"))
    assert main(["tile", str(tmp_path / "a.npy"), *flags]) == 0
    output = " ".join(capsys.readouterr().out.split())
    assert "(uncertain: --tissue colour and otsu agree by 67% only; look at the picture" in output
