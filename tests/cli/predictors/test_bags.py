"""Classes and attention of slides from bags of their tiles."""

import json

import pytest
import tifffile
from cli_runs import predictions

from tfbig.cli.main import main


@pytest.mark.slow
def test_run_on_bags(slide_bags_run, tmp_path, capsys):
    """Tiles, resolution and classes are those of the run; finished slides are skipped."""
    run, out = str(slide_bags_run.folder), tmp_path / "out"
    folder = slide_bags_run.data.parent / "centre 1"
    assert main(["predict", run, str(folder), "--out", str(out)]) == 3
    output = capsys.readouterr()
    assert "35 tiles, attention up to" in output.out
    assert "s1.tif" in output.err
    names = {
        f"{slide}{end}"
        for slide in ("s4", "s7")
        for end in (".geojson", ".png", "_attention.ome.tif")
    }
    common = {".lock", ".tfbig-files", "failed.csv", "predict.yaml", "predictions.csv"}
    common |= {"report.html", "versions.json", "views"}
    assert {p.name for p in out.iterdir()} == names | common
    first, _ = predictions(out)
    assert (first["slide"], first["tiles"], first["mpp_rows"]) == ("s4.tif", "35", "1.0")
    assert float(first["probability_purple"]) + float(first["probability_red"]) == pytest.approx(1)
    tiles = json.loads((out / "s4.geojson").read_text())["features"]
    assert {f["properties"]["objectType"] for f in tiles} == {"detection"}
    numbers = [f["properties"]["measurements"] for f in tiles]
    assert sum(n["attention"] for n in numbers) == pytest.approx(1, abs=1e-5)
    assert set(numbers[0]) == {"attention", "probability_purple", "probability_red"}
    with tifffile.TiffFile(out / "s4_attention.ome.tif") as file:
        heat = file.asarray()
        assert heat.shape == (40, 40)  # a quarter of a tile of 16 pixels of 1 um
        assert 'PhysicalSizeX="4.0"' in file.ome_metadata
    assert heat.max() == pytest.approx(max(n["attention"] for n in numbers), rel=0.3)
    assert heat[0, 0] == 0
    assert main(["predict", run, str(folder / "s4.tif"), "--out", str(out)]) == 0
    assert "1 of 1 slides are already finished" in capsys.readouterr().out
