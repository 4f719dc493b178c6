"""What is printed while TensorFlow is loaded."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from samples import ROOT

from tfbig.system import startup_logs

LOG = b"I0000 00:00:1.2    7 port.cc:153] oneDNN is on\n"
FONTS = "Matplotlib is building the font cache; this may take a moment.\n"
USE = "import tfbig, tensorflow as tf; tf.zeros(3)"


def started(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run Python in the checkout, without settings of TensorFlow's logs but those given."""
    inherited = {k: v for k, v in os.environ.items() if k not in startup_logs.QUIET}
    return subprocess.run(
        [sys.executable, "-c", code],
        env=inherited | {"PYTHONPATH": str(ROOT)} | environment,
        capture_output=True,
        text=True,
        check=True,
    )


def test_lines_that_are_no_logs_are_printed(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(startup_logs.LEVEL, "2")
    with pytest.raises(ZeroDivisionError), startup_logs.without_logs():
        os.write(2, LOG)
        os.write(2, b"E0000 00:00:1.2    7 port.cc:153] error\nTraceback\n")
        raise ZeroDivisionError
    assert capfd.readouterr().err == "E0000 00:00:1.2    7 port.cc:153] error\nTraceback\n"


def test_nothing_is_held_back_once_tensorflow_is_loaded(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with startup_logs.held_back():
        os.write(2, LOG)
        assert capfd.readouterr().err.encode() == LOG


@pytest.mark.slow  # as are the others that import TensorFlow in a process
def test_importing_tfbig_prints_nothing(tmp_path: Path) -> None:
    """But what other packages print, such as Matplotlib without a home."""
    assert started(USE, MPLCONFIGDIR=str(tmp_path)).stderr in ("", FONTS)


@pytest.mark.slow
def test_own_setting_of_the_logs_wins() -> None:
    assert "cpu_feature_guard.cc" in started(USE, TF_CPP_MIN_LOG_LEVEL="0").stderr


@pytest.mark.slow
def test_closed_standard_error() -> None:
    started(f"import os, sys; os.close(2); sys.stderr = None; {USE}")
