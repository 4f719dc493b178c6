"""The console command `tfbig`: help, version and exit codes."""

import numpy as np
import pytest
from PIL import Image

from tfbig.cli.main import main


def test_no_command_and_version(capsys):
    assert main([]) == 2
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("tfbig 0.1")


def test_only_errors_of_tfbig_are_printed(tmp_path, capfd, monkeypatch):
    """The libraries tifffile and Pillow log damage and warn of large pictures, in their own words."""
    (tmp_path / "a.tif").write_bytes(b"II*\0 no slide")
    Image.fromarray(np.full((800, 800), 240, np.uint8)).save(tmp_path / "b.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 600_000)
    command = ["tile", str(tmp_path), "--out", str(tmp_path / "out"), "--level", "0"]
    assert main([*command, "--tile", "256", "--tissue", "none"]) == 3
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == 2, lines
    first, last = lines
    assert first == f"failed: {tmp_path / 'a.tif'}: is a TIFF file without a complete image. " + (
        "Write or copy it again."
    )
    assert last.startswith("1 of 2 slides failed")
