"""A test for each rule of the readers without a table of their own module."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import imagecodecs
import nibabel
import numpy as np
import pytest
import rasterio
import zarr
from PIL import Image
from scene_files import write_scene
from slide_files import SMALL_SVS, image

import tfbig
from tfbig import SourceError, SourceWarning, sources
from tfbig.sources import rules

RGB = image(8, 9, 3)
VOLUME = np.arange(24, dtype="int16").reshape(2, 3, 4)


def whole(path: Path) -> Any:
    source = tfbig.open(path)
    return source.read(0, source.shape[0])


def orientation(folder: Path) -> None:
    exif = Image.Exif()
    exif[274] = 6  # the first row is the right column
    Image.fromarray(RGB).save(folder / "a.png", exif=exif)
    np.testing.assert_array_equal(whole(folder / "a.png"), np.rot90(RGB, -1))


def palette(folder: Path) -> None:
    picture = Image.fromarray(np.array([[0, 1]], np.uint8))
    picture.putpalette([1, 2, 3, 4, 5, 6])
    picture.save(folder / "a.png")
    assert whole(folder / "a.png").tolist() == [[[1, 2, 3], [4, 5, 6]]]
    assert sources.open_labels(folder / "a.png").read(0, 1).ravel().tolist() == [0, 1]


def alpha(folder: Path) -> None:
    Image.fromarray(np.dstack([RGB, np.zeros((8, 9), np.uint8)])).save(folder / "a.png")
    np.testing.assert_array_equal(whole(folder / "a.png"), RGB)


def cmyk(folder: Path) -> None:
    Image.fromarray(RGB).convert("CMYK").save(folder / "a.jpg")
    expected = np.asarray(Image.open(folder / "a.jpg").convert("RGB"))
    np.testing.assert_array_equal(whole(folder / "a.jpg"), expected)


def sixteen(folder: Path) -> None:
    array = RGB.astype(np.uint16) * 257
    (folder / "a.png").write_bytes(imagecodecs.png_encode(array))
    np.testing.assert_array_equal(whole(folder / "a.png"), array)


def profile(folder: Path) -> None:
    from PIL import ImageCms

    data = ImageCms.ImageCmsProfile(ImageCms.createProfile("LAB")).tobytes()
    Image.fromarray(RGB).save(folder / "a.png", icc_profile=data)
    np.testing.assert_array_equal(whole(folder / "a.png"), RGB)


def openslide_of(path: Path = SMALL_SVS) -> tuple[Any, Any]:
    """Return a slide of ours and of OpenSlide."""
    openslide = pytest.importorskip("openslide")
    if not path.exists():
        pytest.skip(f"{path.name} is not here")
    return tfbig.open_slide(path, reader="openslide"), openslide.OpenSlide(path)


def resolution(_: Path) -> None:
    ours, theirs = openslide_of()
    assert ours.mpp == tuple(float(theirs.properties[f"openslide.mpp-{axis}"]) for axis in "yx")
    assert ours.magnification == float(theirs.properties["openslide.objective-power"])


def pixels_of_openslide(_: Path) -> None:
    ours, theirs = openslide_of()
    region = np.asarray(theirs.read_region((30, 40), 0, (20, 10)))
    assert (region[..., 3] == 255).all()
    np.testing.assert_array_equal(ours.read((40, 50), (30, 50)), region[..., :3])


def white(_: Path) -> None:
    """Outside the slide OpenSlide's pixels are transparent; the background is white without a property."""
    from tfbig.sources.slides.openslide import _background, _opaque

    assert list(_background({})) == [255, 255, 255]
    assert list(_background({"openslide.background-color": "010203"})) == [1, 2, 3]
    transparent = np.zeros((1, 1, 4), np.uint8)
    assert _opaque(transparent, np.array([1, 2, 3], np.uint8)).tolist() == [[[1, 2, 3]]]


def associated(_: Path) -> None:
    ours, theirs = openslide_of()
    assert theirs.associated_images
    assert ours.shape[:2] == theirs.dimensions[::-1]


def scaled_band(folder: Path) -> None:
    write_scene(folder / "a.tif", RGB[..., :1].astype("uint16") + 1, nodata=0)
    with rasterio.open(folder / "a.tif", "r+") as file:
        file.scales, file.offsets = (2.0,), (1.0,)
    expected = (RGB[..., :1].astype("float32") + 1) * 2 + 1
    np.testing.assert_array_equal(whole(folder / "a.tif"), expected)


def no_measurement(folder: Path) -> None:
    array = RGB.copy()
    array[2, 3] = 7
    scene = sources.RasterSource(write_scene(folder / "a.tif", array, nodata=7))
    valid = scene.valid((0, 8), (0, 9), scene.read(0, 8))
    expected = (array != 7).any(-1)
    np.testing.assert_array_equal(valid, expected)
    assert not valid[2, 3]


def grid(folder: Path) -> None:
    path = write_scene(folder / "a.tif", RGB)
    with rasterio.open(path) as file:
        assert sources.RasterSource(path).grid.transform == file.transform


def colour_table(folder: Path) -> None:
    numbers = np.array([[0, 1], [1, 2]], np.uint8)
    path = write_scene(folder / "a.tif", numbers[..., None])
    with rasterio.open(path, "r+") as file:
        file.write_colormap(1, {0: (9, 9, 9, 255), 1: (8, 0, 0, 255)})
    np.testing.assert_array_equal(sources.RasterSource(path).read(0, 2)[..., 0], numbers)


def several(folder: Path) -> None:
    options = {"driver": "GTiff", "height": 8, "width": 9, "count": 1, "dtype": "uint8"}
    write_scene(folder / "a.tif", RGB)
    with rasterio.open(folder / "a.tif") as file:
        place = {"crs": file.crs, "transform": file.transform}
    with rasterio.open(folder / "a.tif", "w", APPEND_SUBDATASET="NO", **options, **place):
        pass
    with rasterio.open(folder / "a.tif", "w", APPEND_SUBDATASET="YES", **options, **place):
        pass
    with pytest.raises(SourceError, match="holds 2 images instead of one"):
        sources.RasterSource(folder / "a.tif")


def unit(folder: Path) -> None:
    path = write_scene(folder / "a.tif", RGB)
    with rasterio.open(path, "r+") as file:
        file.units = ("m", "m", "m")
    np.testing.assert_array_equal(sources.RasterSource(path).read(0, 8), RGB)


def zarr_array(folder: Path, **attributes: Any) -> Path:
    array = zarr.create_array(
        folder / "a.zarr", shape=(8, 9), chunks=(4, 9), dtype="uint8", fill_value=5
    )
    array[:4] = RGB[:4, :, 0]
    array.attrs.update(attributes)
    return folder / "a.zarr"


def fill(folder: Path) -> None:
    found = whole(zarr_array(folder))[..., 0]
    np.testing.assert_array_equal(found[:4], RGB[:4, :, 0])
    assert (found[4:] == 5).all()


def ome(folder: Path) -> Path:
    picture = tfbig.open(RGB)
    picture.mpp = (0.5, 0.25)
    sources.write_ome_zarr(folder / "a.zarr", picture)
    return folder / "a.zarr"


def multiscales(folder: Path) -> None:
    np.testing.assert_array_equal(whole(ome(folder)), RGB)


def scale(folder: Path) -> None:
    assert tfbig.open_slide(ome(folder)).mpp == (0.5, 0.25)


def windows(folder: Path) -> None:
    group = zarr.open_group(ome(folder))
    ome_facts = dict(group.attrs.get("ome", group.attrs))
    window = {"start": 3, "end": 4, "min": 0, "max": 9}
    ome_facts["omero"] = {"channels": [{"window": window, "color": "FF0000"}] * 3}
    group.attrs.update({"ome": ome_facts} if "ome" in group.attrs else ome_facts)
    np.testing.assert_array_equal(whole(folder / "a.zarr"), RGB)


def zarr_scaling(folder: Path) -> None:
    path = zarr_array(folder, scale_factor=1e-4, add_offset=0)
    with pytest.warns(SourceWarning, match=r"not what is stored \(scale_factor 0\.0001\)"):
        tfbig.open_slide(path)


def nifti(folder: Path, array: np.ndarray = VOLUME, **fields: Any) -> Path:
    """Write a NIfTI file; its first axis is the fastest, our last."""
    file = nibabel.Nifti1Image(array.transpose(2, 1, 0), np.diag([2.0, 3.0, 4.0, 1.0]))
    file.header.set_xyzt_units("mm")
    for name, value in fields.items():
        file.header[name] = value
    nibabel.save(file, folder / "a.nii")
    return folder / "a.nii"


def nifti_scaling(folder: Path) -> None:
    array = VOLUME / 7 + 100.0
    file = nibabel.Nifti1Image(array.transpose(2, 1, 0), np.eye(4))
    file.set_data_dtype(np.int16)
    nibabel.save(file, folder / "a.nii")
    expected = nibabel.load(folder / "a.nii").get_fdata().transpose(2, 1, 0)
    found = tfbig.open(folder / "a.nii").values().read(0, 2)[..., 0]
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def nifti_place(folder: Path) -> None:
    assert tfbig.open(nifti(folder)).spacing == (4.0, 3.0, 2.0)


def nifti_channels(folder: Path) -> None:
    array = np.stack([VOLUME, VOLUME + 100], -1)
    file = nibabel.Nifti1Image(array.transpose(2, 1, 0, 3), np.eye(4))
    nibabel.save(file, folder / "a.nii")
    np.testing.assert_array_equal(whole(folder / "a.nii"), array)


def nifti_display(folder: Path) -> None:
    np.testing.assert_array_equal(whole(nifti(folder, cal_min=3, cal_max=4))[..., 0], VOLUME)


def nrrd(folder: Path, *lines: str, data: bytes = VOLUME.tobytes()) -> Path:
    header = ["NRRD0004", "type: short", "dimension: 3", "sizes: 4 3 2", "encoding: raw", *lines]
    (folder / "a.nrrd").write_bytes("\n".join([*header, "", ""]).encode() + data)
    return folder / "a.nrrd"


def nrrd_place(folder: Path) -> None:
    path = nrrd(folder, "endian: little", "spacings: 2 3 4")
    assert tfbig.open(path).spacing == (4.0, 3.0, 2.0)


def nrrd_bytes(folder: Path) -> None:
    path = nrrd(folder, "endian: big", "byte skip: -1", data=b"xx" + VOLUME.astype(">i2").tobytes())
    np.testing.assert_array_equal(whole(path)[..., 0], VOLUME)


def nrrd_file(folder: Path) -> None:
    (folder / "v.raw").write_bytes(VOLUME.tobytes())
    path = nrrd(folder, "endian: little", "data file: v.raw", data=b"").rename(folder / "a.nhdr")
    np.testing.assert_array_equal(whole(path)[..., 0], VOLUME)
    nrrd(folder, "endian: little", "data file: /etc/passwd", data=b"").rename(folder / "b.nhdr")
    with pytest.raises(SourceError):
        tfbig.open(folder / "b.nhdr")


def nrrd_limits(folder: Path) -> None:
    path = nrrd(folder, "endian: little", "old min: -1000", "old max: 3000")
    with pytest.warns(SourceWarning, match="not what is stored .*-1000.*, which is not applied"):
        tfbig.open(path)


CASES: dict[str, tuple[Sequence[rules.Rule], list[Callable[[Path], None]]]] = {
    "pictures": (rules.PICTURES, [orientation, palette, alpha, cmyk, sixteen, profile]),
    "openslide": (
        rules.OPENSLIDE,
        [resolution, white, white, associated, pixels_of_openslide],
    ),
    "scenes": (
        rules.SCENES,
        [scaled_band, no_measurement, grid, colour_table, several, unit],
    ),
    "zarr": (rules.ZARR, [fill, multiscales, scale, windows, zarr_scaling]),
    "nifti": (rules.NIFTI, [nifti_scaling, nifti_place, nifti_channels, nifti_display]),
    "nrrd": (rules.NRRD, [nrrd_place, nrrd_bytes, nrrd_file, nrrd_limits]),
}


@pytest.mark.parametrize(
    ("reader", "row"), [(name, n) for name, (table, _) in CASES.items() for n in range(len(table))]
)
def test_rule(reader: str, row: int, tmp_path: Path) -> None:
    CASES[reader][1][row](tmp_path)


def test_every_rule_has_a_test() -> None:
    assert all(len(table) == len(tests) for table, tests in CASES.values())
