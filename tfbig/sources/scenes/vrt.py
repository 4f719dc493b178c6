"""VRT files, written again with nothing in them but rectangles of images: GDAL never sees the file itself."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final
from xml.etree import ElementTree

from tfbig.errors import SourceError, reason_of
from tfbig.sources import untrusted

MOST_BYTES: Final = 2**26
"""Largest VRT file, and longest text of one with the VRT files that it shows: about 100,000 rectangles."""
MOST_DEPTH: Final = 16
"""Deepest nesting of elements."""
Source = Callable[[Path], tuple[str, tuple[int, int] | None]]
"""Function that checks a file, and returns its name for GDAL, and its rows and columns where they are known."""


def _by_lower_case(*names: str) -> dict[str, str]:
    return {name.lower(): name for name in names}


_DATASET: Final = _by_lower_case("SRS", "GeoTransform", "OverviewList")
_BAND: Final = _by_lower_case(
    "Description",
    "UnitType",
    "Offset",
    "Scale",
    "NoDataValue",
    "HideNoDataValue",
    "ColorInterp",
)
_SOURCE: Final = _by_lower_case(
    "SourceBand",
    "SourceProperties",
    "SrcRect",
    "DstRect",
    "NODATA",
    "LUT",
    "ScaleOffset",
    "ScaleRatio",
    "ColorTableComponent",
    "Exponent",
    "SrcMin",
    "SrcMax",
    "DstMin",
    "DstMax",
    "Clamp",
    "UseMaskBand",
)
"""Elements without others inside, which are copied: by their name in lower case, as GDAL compares them."""
_LISTS: Final = {
    "colortable": ("ColorTable", "Entry"),
    "categorynames": ("CategoryNames", "Category"),
    "metadata": ("Metadata", "MDI"),
}
"""Elements with a list of others."""
_UNUSED: Final = {"gcplist", "histograms", "gdalrasterattributetable"}
_SOURCES: Final = _by_lower_case("SimpleSource", "ComplexSource")
_OPTIONS: Final = {"OVERVIEW_LEVEL", "NUM_THREADS"}
"""Options with which a source may be opened."""
_SUBCLASSES: Final = {"", "VRTDataset", "VRTSourcedRasterBand"}


def rewritten(path: Path, source: Source) -> str:
    """Rewrite a VRT file as text with only what is known to be safe, and absolute paths.

    `source` checks each file that it names.

    Raises:
        SourceError: It is no VRT file; or it holds anything but bands of rectangles of other images, such as images
            of a network, raw bytes, warped images or programs.
    """
    root = _parsed(path)
    if root.tag.lower() != "vrtdataset":
        raise SourceError(
            f"{path}: is no VRT file: its first element is {reason_of(root.tag, 60)}; expected VRTDataset."
        )
    text = ElementTree.tostring(_Rewriting(path, source).dataset(root), encoding="unicode")
    _check_length(path, len(text))
    return text


class _Tree(ElementTree.TreeBuilder):
    """Elements of a file, which are few levels deep and define no entities."""

    def __init__(self) -> None:
        super().__init__()
        self._depth = 0

    def start(self, tag: Any, attrs: Any, /) -> Any:
        self._depth += 1
        if self._depth > MOST_DEPTH:
            raise ValueError(f"its elements are more than {MOST_DEPTH} levels deep")
        return super().start(tag, attrs)

    def end(self, tag: Any, /) -> Any:
        self._depth -= 1
        return super().end(tag)

    def doctype(self, *_: object) -> None:
        """Refuse a definition of entities, which may expand to any length, before the first one is used."""
        raise ValueError("it has a DOCTYPE")


def _parsed(path: Path) -> Any:
    _check_length(path, untrusted.regular_file(path).st_size)
    with untrusted.reading(path, "cannot be read as VRT"):
        return ElementTree.fromstring(path.read_bytes(), ElementTree.XMLParser(target=_Tree()))


def _check_length(path: Path, length: int) -> None:
    if length > MOST_BYTES:
        raise SourceError(
            f"{path}: is a VRT of {length} bytes, with the VRT files that it names; expected at most {MOST_BYTES}. "
            "Write several files, or one GeoTIFF."
        )


class _Rewriting:
    """Copies the elements of one file."""

    def __init__(self, path: Path, source: Source) -> None:
        self._path, self._source = path, source
        self._folder = os.path.dirname(os.path.realpath(path))
        self._length = 0

    def dataset(self, element: Any) -> Any:
        """Copy the whole file."""
        new = self._started(element, "VRTDataset", ("rasterXSize", "rasterYSize"))
        for child in element:
            name = child.tag.lower()
            if name == "vrtrasterband":
                new.append(self._band(child))
            elif name == "maskband":
                new.append(self._mask(child))
            else:
                new.extend(self._simple(child, _DATASET))
        return new

    def _mask(self, element: Any) -> Any:
        new = ElementTree.Element("MaskBand")
        for child in element:
            if child.tag.lower() != "vrtrasterband":
                raise self._refused(child.tag)
            new.append(self._band(child))
        return new

    def _band(self, element: Any) -> Any:
        names = "dataType", "band", "blockXSize", "blockYSize"
        new = self._started(element, "VRTRasterBand", names)
        for child in element:
            name = child.tag.lower()
            if name in _SOURCES:
                new.append(self._rectangle(child))
            elif name == "maskband":
                new.append(self._mask(child))
            elif name == "overview":
                new.append(self._overview(child))
            else:
                new.extend(self._simple(child, _BAND))
        return new

    def _rectangle(self, element: Any) -> Any:
        """Copy a rectangle of another file."""
        new = ElementTree.Element(_SOURCES[element.tag.lower()], element.attrib)
        size = None
        for child in element:
            name = child.tag.lower()
            if name == "sourcefilename":
                file, size = self._file(child)
                new.append(file)
            elif name == "openoptions":
                new.append(self._options(child))
            else:
                new.extend(self._simple(child, _SOURCE))
        self._check_size(new.find("SourceProperties"), size)
        return new

    def _overview(self, element: Any) -> Any:
        new = ElementTree.Element("Overview")
        for child in element:
            if child.tag.lower() == "sourcefilename":
                new.append(self._file(child)[0])
            else:
                new.extend(self._simple(child, _by_lower_case("SourceBand")))
        return new

    def _file(self, element: Any) -> tuple[Any, tuple[int, int] | None]:
        """Write the name of a file, as GDAL shall open it, into an element, and find its rows and columns."""
        name, given = element.text or "", _lower_case(element)
        if not name.strip() or "/vsi" in name or "://" in name or "<" in name:
            raise SourceError(
                f"{self._path}: names the source {reason_of(name, 100)!r}, in a network, an archive or the "
                "VRT itself; expected a file. Copy the file, and write the VRT again."
            )
        folder = self._folder if given.get("relativetovrt", "0").strip() not in ("", "0") else ""
        try:
            text, size = self._source(Path(os.path.abspath(os.path.join(folder, name))))
        except SourceError as error:
            raise SourceError(f"{self._path}: its source {error}") from error
        self._length += len(text)
        _check_length(self._path, self._length)
        new = ElementTree.Element("SourceFilename", relativeToVRT="0")
        if "shared" in given:
            new.set("shared", given["shared"])
        new.text = text
        return new, size

    def _options(self, element: Any) -> Any:
        new = ElementTree.Element("OpenOptions")
        for child in element:
            key = _lower_case(child).get("key", "").upper()
            if child.tag.lower() != "ooi" or key not in _OPTIONS:
                raise self._refused(f"option {key} of {child.tag}")
            ElementTree.SubElement(new, "OOI", key=key).text = child.text
        return new

    def _check_size(self, properties: Any, size: tuple[int, int] | None) -> None:
        """Raise SourceError where a file has not the size that the VRT file says."""
        if properties is None or size is None:
            return
        given = _lower_case(properties)
        said = given.get("rasterysize", "").strip(), given.get("rasterxsize", "").strip()
        if said != (str(size[0]), str(size[1])):
            raise SourceError(
                f"{self._path}: a source has {size[0]} x {size[1]} pixels, not {reason_of(' x '.join(said))} "
                "as it says. Write the VRT again."
            )

    def _simple(self, element: Any, names: dict[str, str]) -> Iterable[Any]:
        """Copy an element that names no file, or drop one that is not used."""
        name = element.tag.lower()
        if name in names and not len(element):
            return [_copy(element, names[name])]
        if name in _LISTS:
            return self._list(element, *_LISTS[name])
        if name in _UNUSED:
            return []
        raise self._refused(element.tag)

    def _list(self, element: Any, name: str, item: str) -> Iterable[Any]:
        if name == "Metadata" and _lower_case(element).get("domain", "") not in (
            "",
            "IMAGE_STRUCTURE",
        ):
            return []
        new = ElementTree.Element(name, element.attrib)
        for child in element:
            if child.tag.lower() != item.lower() or len(child):
                raise self._refused(child.tag)
            new.append(_copy(child, item))
        return [new]

    def _started(self, element: Any, name: str, attributes: Iterable[str]) -> Any:
        """Start an element with some attributes of another one."""
        given = _lower_case(element)
        if given.get("subclass", "") not in _SUBCLASSES:
            raise self._refused(given["subclass"])
        known = {key: given[key.lower()] for key in attributes if key.lower() in given}
        return ElementTree.Element(name, known)

    def _refused(self, what: str) -> SourceError:
        return SourceError(
            f"{self._path}: holds {reason_of(what, 60)}; expected bands of SimpleSource and ComplexSource, "
            "as of gdalbuildvrt. Write it as GeoTIFF with gdal_translate, if you trust it."
        )


def _lower_case(element: Any) -> dict[str, str]:
    return {key.lower(): value for key, value in element.attrib.items()}


def _copy(element: Any, name: str) -> Any:
    new = ElementTree.Element(name, element.attrib)
    new.text = element.text
    return new
