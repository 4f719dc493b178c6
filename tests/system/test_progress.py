"""Progress line: printed for long steps only, at intervals, and only on a terminal."""

import io

import pytest

from tfbig.system import progress


@pytest.fixture
def clock(monkeypatch):
    """Replace the meter by one with a clock set by hand, and print always."""
    now = [100.0]
    meter = progress.Meter(lambda: now[0])
    monkeypatch.setattr(progress, "METER", meter)
    progress.show(True)
    yield now
    progress.show(None)


def test_prints_and_clears_the_line_of_a_long_step(clock, capsys):
    with progress.reporting("a.tif", "tile") as report:
        report(1, 9)
        assert capsys.readouterr().err == ""
        clock[0] += 5
        report(4, 9)
        assert capsys.readouterr().err == "\ra.tif, tile 4/9, 5 s "
        clock[0] += 0.1
        report(5, 9)  # too soon
        assert capsys.readouterr().err == ""
        clock[0] += 1
        report(9, 9)
        assert "tile 9/9" in capsys.readouterr().err
    assert capsys.readouterr().err == "\r" + " " * 60 + "\r"


def test_rate(clock, capsys):
    with progress.reporting("a.tif", "tile", rate=True) as report:
        clock[0] += 8
        report(20, 80)
    assert "a.tif, tile 20/80, 2.5 tiles/s, 8 s" in capsys.readouterr().err


def test_clears_the_line_after_an_error(clock, capsys):
    def long_work():
        with progress.reporting("a.tif") as report:
            clock[0] += 9
            report(1, 2)
            raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        long_work()
    printed = capsys.readouterr().err
    assert "strip 1/2" in printed
    assert printed.endswith(" \r")


def test_prints_in_a_notebook(clock, monkeypatch):
    class OutStream(io.StringIO):
        """Looks like the stream of a notebook, which is no terminal."""

    OutStream.__module__ = "ipykernel.iostream"
    stream = OutStream()
    monkeypatch.setattr("sys.stderr", stream)
    progress.show(None)
    with progress.reporting("a.tif") as report:
        clock[0] += 9
        report(1, 2)
    assert stream.getvalue().startswith("\ra.tif, strip 1/2, 9 s ")


@pytest.mark.parametrize("shown", [False, None])
def test_prints_nothing_without_a_terminal_or_if_turned_off(shown, clock, capsys):
    progress.show(shown)
    with progress.reporting("a.tif") as report:
        clock[0] += 9
        report(1, 2)
    assert capsys.readouterr().err == ""
