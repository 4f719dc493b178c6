"""Slides as tasks of a Dask cluster."""

import pytest
from cli_runs import TILE, tables

from tfbig.cli.main import main


@pytest.mark.slow
def test_local_cluster(many, whole, tmp_path, capsys):
    out = tmp_path / "out"
    assert main(["tile", str(many), "--out", str(out), *TILE, "--dask", "local"]) == 3
    assert tables(out) == tables(whole)
    assert len(list(out.glob("*.h5"))) == 4
    assert main(["tile", str(many), "--out", str(out), *TILE, "--dask", "tcp://localhost:1"]) == 1
    assert "the scheduler does not answer" in capsys.readouterr().err


def test_dask_is_not_installed(many, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("tfbig.cli.dask.find_spec", lambda name: None)
    assert main(["tile", str(many), "--out", str(tmp_path / "out"), "--dask", "local"]) == 1
    assert "pip install 'tfbig[dask]'" in capsys.readouterr().err
