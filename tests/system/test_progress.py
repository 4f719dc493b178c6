"""How far a long step is: said after a while, now and then, on one line, and never where nobody wants it."""

import pytest

from tfbig.system import progress


@pytest.fixture
def clock(monkeypatch):
    """A meter whose time is set by hand, and what it prints."""
    now = [100.0]
    meter = progress.Meter(lambda: now[0])
    monkeypatch.setattr(progress, "METER", meter)
    progress.show(True)
    yield now
    progress.show(None)


def test_a_short_step_says_nothing_and_a_long_one_clears_its_line(clock, capsys):
    with progress.telling("a.tif", "tile") as ticked:
        ticked(1, 9)
        assert capsys.readouterr().err == ""
        clock[0] += 5
        ticked(4, 9)
        assert capsys.readouterr().err == "\ra.tif, tile 4/9, 5 s "
        clock[0] += 0.1
        ticked(5, 9)  # too soon
        assert capsys.readouterr().err == ""
        clock[0] += 1
        ticked(9, 9)
        assert "tile 9/9" in capsys.readouterr().err
    assert capsys.readouterr().err == "\r" + " " * 60 + "\r"


def test_the_line_is_cleared_when_something_fails(clock, capsys):
    def lasting():
        with progress.telling("a.tif") as ticked:
            clock[0] += 9
            ticked(1, 2)
            raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        lasting()
    told = capsys.readouterr().err
    assert "strip 1/2" in told
    assert told.endswith(" \r")


@pytest.mark.parametrize("shown", [False, None])
def test_nothing_is_printed_quietly_or_without_a_terminal(shown, clock, capsys):
    progress.show(shown)
    with progress.telling("a.tif") as ticked:
        clock[0] += 9
        ticked(1, 2)
    assert capsys.readouterr().err == ""
