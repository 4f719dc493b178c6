"""`tfbig tile`: tiles, files, flags."""

import json

import numpy as np
import pytest
import shapely
import shapely.geometry
import tifffile
import yaml
from cli_runs import write_square
from PIL import Image
from scanned_slides import TISSUE, write_scanned

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
    assert "a.tif: 16 tiles of 64 x 64 pixels, 1 x the pixels of level 0, 29.9% tissue" in output
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
    assert main(["tile", str(slides), "--out", str(tmp_path / "out"), *flags]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    "flags",
    [("--tile", "0"), ("--min-tissue", "2"), ("--mpp", "-1"), ("--tissue", "all"), ("--til", "5")],
)
def test_wrong_flags(slides, tmp_path, flags):
    assert main(["tile", str(slides), "--out", str(tmp_path / "out"), *flags]) == 2


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


def bounds_of(path):
    """Return the rectangle around the outlines of a file: x, y, x, y."""
    features = json.loads(path.read_text())["features"]
    return shapely.union_all([shapely.geometry.shape(f["geometry"]) for f in features]).bounds


def test_outlines_are_counted_from_the_scanned_area(tmp_path, monkeypatch, capsys):
    """Coordinates are counted as in QuPath: less by `openslide.bounds-x` and `-y` than in pixels of level 0."""
    slide = write_scanned(tmp_path / "a.scn", monkeypatch)
    flags = ["tile", str(slide), "--tile", "50", "--mpp", "0.5", "--tissue"]
    assert main([*flags, "grey", "--out", str(tmp_path / "scanned")]) == 0
    line = "a.scn: its outlines are counted from the scanned area, x 100 and y 50 of level 0, as in"
    assert line in capsys.readouterr().out
    level_0 = ["--outline-origin", "level-0"]
    assert main([*flags, "grey", "--out", str(tmp_path / "level_0"), *level_0]) == 0
    assert "counted from" not in capsys.readouterr().out
    (top, bottom), (left, right) = TISSUE
    near = {"abs": 16}  # the mask has 8 um a pixel
    assert bounds_of(tmp_path / "level_0" / "a.geojson") == pytest.approx(
        (left, top, right, bottom), **near
    )
    assert bounds_of(tmp_path / "scanned" / "a.geojson") == pytest.approx(
        (left - 100, top - 50, right - 100, bottom - 50), **near
    )
    for number, name in enumerate(("scanned", "level_0", "scanned")):  # files say what they are
        out = tmp_path / f"again_{number}"
        origin = level_0 if number == 2 else []
        assert main([*flags, str(tmp_path / name), "--out", str(out), *origin]) == 0
        assert ("shifted by x 100 and y 50" in capsys.readouterr().err) == (name == "scanned")
        (first, last) = (f(read_coords(out / "a.h5").coords.tolist()) for f in (min, max))
        assert (first, last) == ([300, 150], [450, 300])


def test_classes_of_outlines(tmp_path, capsys):
    write_square(tmp_path / "a.tif")
    boxes = {"Tumor": (100, 100, 200, 200), "Stroma": (300, 300, 400, 400)}
    features = [
        {
            "geometry": shapely.geometry.mapping(shapely.box(*box)),
            "properties": {"classification": {"name": name}},
        }
        for name, box in boxes.items()
    ]
    (tmp_path / "a.geojson").write_text(json.dumps(features))
    flags = ["tile", str(tmp_path / "a.tif"), "--tile", "20", "--out", str(tmp_path / "out")]
    drawn = ["--tissue", str(tmp_path / "a.geojson")]
    assert main([*flags, *drawn, "--strict"]) == 1
    error = capsys.readouterr().err
    assert "of class Stroma (1), of class Tumor (1)" in error
    assert "Name those that count with --outline-classes NAME." in error
    flags[-1] = str(tmp_path / "tumor")
    assert main([*flags, *drawn, "--outline-classes", "tumor"]) == 0
    assert "count 1 of class Tumor, not 1 of class Stroma" in capsys.readouterr().err
    coords = read_coords(tmp_path / "tumor" / "a.h5").coords
    assert (coords.min(), coords.max()) == (100, 180)
    flags[-1] = str(tmp_path / "unused")
    assert main([*flags, "--outline-classes", "tumor"]) == 2
    assert "--outline-classes: no outlines are read with --tissue colour" in capsys.readouterr().err


def write_pixels(path, rows, columns):
    """Write a slide of 640 x 800 pixels of some micrometres, with tissue."""
    image = np.full((640, 800, 3), 240, np.uint8)
    image[150:450, 200:600] = (130, 70, 160)
    per_cm = 1e4 / columns, 1e4 / rows
    options = {"photometric": "rgb", "resolution": per_cm, "resolutionunit": "CENTIMETER"}
    tifffile.imwrite(path, image, tile=(64, 64), **options)


def test_pixels_that_are_not_square(tmp_path, capsys):
    """Tiles at a resolution would be rectangles of level 0, which files of tiles cannot hold."""
    write_pixels(tmp_path / "a.tif", 0.25, 0.2)
    flags = ["tile", str(tmp_path / "a.tif"), "--tile", "32", "--out", str(tmp_path / "out")]
    assert main([*flags, "--mpp", "0.5"]) == 3
    error = capsys.readouterr().err
    assert "pixels are 0.25 x 0.2 um (rows x columns)" in error
    assert "Use --level 0 for the pixels as they are, or resample the slide." in error
    flags[-1] = str(tmp_path / "level")
    assert main([*flags, "--level", "0"]) == 0
    assert "pixels that are not square, such as a.tif" in capsys.readouterr().err
    corners = read_coords(tmp_path / "level" / "a.h5").coords
    assert (corners[:, 0].min(), corners[:, 1].min()) == pytest.approx((200, 150), abs=32)
    bounds = bounds_of(tmp_path / "level" / "a.geojson")
    assert bounds == pytest.approx((200, 150, 600, 450), abs=50)


def test_slides_of_one_run(tmp_path, capsys):
    """One magnification is one size of pixels on all slides; a level is not, which is said in one line."""
    for name, mpp in (("a", 0.25), ("b", 0.5), ("c", 0.00025)):
        write_pixels(tmp_path / f"{name}.tif", mpp, mpp)
    both = [str(tmp_path / name) for name in ("a.tif", "b.tif")]
    flags = ["--tile", "32", "--tissue", "none"]
    assert (
        main(["tile", *both, *flags, "--magnification", "10", "--out", str(tmp_path / "10x")]) == 0
    )
    assert "different sizes" not in capsys.readouterr().err
    steps = [read_coords(tmp_path / "10x" / f"{name}.h5").step for name in "ab"]
    assert steps == pytest.approx([4, 2])
    assert main(["tile", *both, *flags, "--level", "0", "--out", str(tmp_path / "level")]) == 0
    line = "slides are read at different sizes of pixels, from 0.25 um (a.tif) to 0.5 um (b.tif)"
    assert line in capsys.readouterr().err
    odd = [str(tmp_path / "c.tif"), "--mpp", "0.5"]
    assert main(["tile", *odd, *flags, "--out", str(tmp_path / "odd")]) == 3
    assert "c.tif: says that its pixels are 0.00025 x 0.00025 um" in capsys.readouterr().err
    given = ["--slide-mpp", "0.3", "--out", str(tmp_path / "given")]
    assert main(["tile", *odd, *flags, *given]) == 0
    assert read_coords(tmp_path / "given" / "c.h5").step == pytest.approx(0.5 / 0.3)
    given[-1] = str(tmp_path / "unused")
    assert main(["tile", both[0], *flags, *given]) == 0
    assert "--slide-mpp 0.3 is not used: files say" in capsys.readouterr().err


def test_magnification_against_micrometres(tmp_path, capsys):
    """The file says 20x and 0.234 um: 20x is 0.5 um, as on every slide."""
    image = np.full((640, 800, 3), 240, np.uint8)
    text = "Aperio Image Library v1\r\n1x1 |AppMag = 20|MPP = 0.2340"
    options = {"photometric": "rgb", "tile": (64, 64), "description": text}
    tifffile.imwrite(tmp_path / "a.svs", image, **options)
    flags = ["--tile", "32", "--tissue", "none", "--magnification", "20"]
    assert main(["tile", str(tmp_path / "a.svs"), *flags, "--out", str(tmp_path / "out")]) == 0
    assert (
        "a.svs: 20x, but 0.234 x 0.234 um a pixel, which is 42.7x; the" in capsys.readouterr().err
    )
    assert read_coords(tmp_path / "out" / "a.h5").step == pytest.approx(0.5 / 0.234)
