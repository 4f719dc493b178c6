"""`tfbig doctor`."""

import json

import pytest

from tfbig.cli.commands import doctor
from tfbig.cli.main import main
from tfbig.sources.files import Package
from tfbig.sources.slides import openslide


def test_missing_packages(capsys, monkeypatch):
    assert main(["doctor"]) == 0
    output = capsys.readouterr().out
    assert (
        "accelerators: " in output
        and "reads NDPI, MRXS, SCN, BIF, Philips, CZI, DICOM: yes" in output
    )
    assert "encoders for tfbig features: 17; their weights are not part of tfbig" in output
    monkeypatch.setattr(openslide, "openslide", Package("not_installed"))
    version = doctor._version
    monkeypatch.setattr(
        doctor, "_version", lambda n: None if n in ("openslide-bin", "zarr") else version(n)
    )
    assert main(["doctor", "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["missing"] == {"openslide-bin": "pip install openslide-bin"}
    assert report["optional"] == {"zarr": "pip install 'tfbig[zarr]'"}
    assert report["readers"]["openslide"] is False
    assert "uni2-h" in report["encoders"]
    assert main(["doctor"]) == 1
    assert "openslide-bin is missing: pip install openslide-bin" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("package", "formats", "extra"),
    [
        ("nibabel", "volumes in NIfTI", "volumes"),
        ("pynrrd", "volumes in NRRD", "volumes"),
        ("pydicom", "volumes in DICOM series", "volumes"),
        ("geopandas", "outlines in GeoJSON, GeoPackage, shapefile, FlatGeobuf", "scenes"),
    ],
)
def test_readers_of_volumes_and_scenes(package, formats, extra, capsys, monkeypatch):
    assert main(["doctor"]) == 0
    output = capsys.readouterr().out
    assert "reads scenes in GeoTIFF, COG, JPEG 2000, VRT: yes, by rasterio" in output
    assert f"reads {formats}: yes, by {package}" in output
    version = doctor._version
    monkeypatch.setattr(doctor, "_version", lambda name: None if name == package else version(name))
    assert main(["doctor"]) == 0
    output = capsys.readouterr().out
    assert f"reads {formats}: no; pip install 'tfbig[{extra}]'" in output
    assert f"{package} is missing (optional): pip install 'tfbig[{extra}]'" in output
