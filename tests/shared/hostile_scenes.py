"""A server that counts requests, and scenes that would make GDAL send some, or read what they should not."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from xml.sax.saxutils import escape


class Listener:
    """A server on this machine that answers nothing.

    Attributes:
        address: Its address, `http://...`.
        requests: First lines of what it received.
    """

    def __init__(self) -> None:
        self._socket = socket.socket()
        self._socket.bind(("127.0.0.1", 0))
        self._socket.listen(50)
        self.address = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self.requests: list[bytes] = []
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:  # closed
                return
            with connection:
                connection.settimeout(1)
                self.requests.append(b"connected")

    def close(self) -> None:
        self._socket.close()


@contextmanager
def nothing_arrives() -> Iterator[str]:
    """Yield the address of a server, and check that nothing connected to it."""
    listener = Listener()
    try:
        yield listener.address
        time.sleep(0.02)
        assert not listener.requests
    finally:
        listener.close()


def vrt(inside: str, head: str = "", attributes: str = "") -> str:
    """Return a VRT file of 8 x 8 pixels with one band."""
    return (
        f'<VRTDataset rasterXSize="8" rasterYSize="8" {attributes}>{head}<VRTRasterBand dataType="Byte" band="1">'
        f"{inside}</VRTRasterBand></VRTDataset>"
    )


def source(name: str, kind: str = "SimpleSource", more: str = "") -> str:
    """Return a source of a VRT file, given its name in XML."""
    return f'<{kind}><SourceFilename relativeToVRT="1">{name}</SourceFilename><SourceBand>1</SourceBand>{more}</{kind}>'


def wms(address: str) -> str:
    """Return a file of GDAL's driver of servers of tiles."""
    return (
        f'<GDAL_WMS><Service name="TMS"><ServerUrl>{address}/wms</ServerUrl></Service><DataWindow><UpperLeftX>0'
        "</UpperLeftX><UpperLeftY>8</UpperLeftY><LowerRightX>8</LowerRightX><LowerRightY>0</LowerRightY><SizeX>8"
        "</SizeX><SizeY>8</SizeY><TileLevel>0</TileLevel></DataWindow><BandsCount>1</BandsCount></GDAL_WMS>"
    )


def hostile_vrts(address: str) -> dict[str, str]:
    """Return VRT files that read from a network, from other kinds of files, or run programs; `in.tif` is beside them.

    Args:
        address: The server.
    """
    remote, good = f"/vsicurl/{address}/a.tif", source("in.tif")
    band = f'<VRTRasterBand dataType="Byte" band="1">{source(remote)}</VRTRasterBand>'
    lower = vrt(source(remote)).replace("VRTRasterBand", "vrtrasterband")
    rectangle = f"<SourceDataset>{remote}</SourceDataset>"
    ending = "</VRTDataset>"
    named = f'<SourceFilename relativeToVRT="0">{remote}</SourceFilename>'
    return {
        "plain": vrt(source(remote)),
        "streaming": vrt(source(f"/vsicurl_streaming/{address}/a.tif")),
        "s3": vrt(source("/vsis3/bucket/a.tif")),
        "zip": vrt(source("/vsizip/in.zip/a.tif")),
        "stdin": vrt(source("/vsistdin/")),
        "address": vrt(source(f"{address}/a.tif")),
        "entity": vrt(source(remote.replace("/", "&#47;"))),
        "address_entity": vrt(source(address.replace("/", "&#x2F;") + "/a.tif")),
        "cdata": vrt(source(f"<![CDATA[{remote}]]>")),
        "lower_case": lower,
        "lower_mask": vrt(
            good, f"<maskband>{band.replace('VRTRasterBand', 'vrtrasterband')}</maskband>"
        ),
        "mask": vrt(good + f"<MaskBand>{band}</MaskBand>"),
        "overview": vrt(good + f"<Overview>{named}<SourceBand>1</SourceBand></Overview>"),
        "warped": vrt(
            "", f"<GDALWarpOptions>{rectangle}</GDALWarpOptions>", 'subClass="VRTWarpedDataset"'
        ),
        "warped_options": vrt(good, f"<GDALWarpOptions>{rectangle}</GDALWarpOptions>"),
        "pansharpened": vrt(
            "",
            f"<PansharpeningOptions><PanchroBand>{named}<SourceBand>1</SourceBand></PanchroBand></PansharpeningOptions>",
            'subClass="VRTPansharpenedDataset"',
        ),
        "processed": vrt("", f"<Input>{named}</Input>", 'subClass="VRTProcessedDataset"'),
        "inline_wms": vrt(source(escape(wms(address)))),
        "inline_vrt": vrt(source(escape(vrt(source(remote))))),
        "kernel": vrt(source("in.tif", "KernelFilteredSource")),
        "averaged": vrt(source("in.tif", "AveragedSource")),
        "array": vrt(source("in.tif", "ArraySource")),
        "raw": vrt("<SourceFilename>/etc/passwd</SourceFilename>").replace(
            'band="1"', 'band="1" subClass="VRTRawRasterBand"'
        ),
        "program": vrt(
            good
            + "<PixelFunctionType>f</PixelFunctionType><PixelFunctionLanguage>Python</PixelFunctionLanguage>"
        ).replace('band="1"', 'band="1" subClass="VRTDerivedRasterBand"'),
        "options": vrt(
            source("in.tif", more='<OpenOptions><OOI key="DRIVER">WMS</OOI></OpenOptions>')
        ),
        "overview_file": vrt(
            good, f'<Metadata domain="OVERVIEWS"><Group name="{remote}"/></Metadata><Group/>'
        ),
        "group": vrt(good).replace(
            ending, f'<Group name="/"><Array name="a">{named}</Array></Group>' + ending
        ),
        "doctype": "<!DOCTYPE a [<!ENTITY e 'aaaa'>]>" + vrt(source("&e;")),
        "not_a_vrt": wms(address),
        "text": "no XML at all",
        "deep": "<VRTDataset>" * 100000,
        "passwd": vrt(source("/etc/passwd")),
        "missing": vrt(source("missing.tif")),
        "folder": vrt(source("..")),
        "wrong_size": vrt(
            source(
                "in.tif",
                more='<SourceProperties RasterXSize="9000" RasterYSize="8" DataType="Byte"/>',
            )
        ),
    }
