"""`tfbig report`."""

import shutil

from tfbig.cli.main import main


def test_report(mil_run, tmp_path, capsys):
    run = shutil.copytree(mil_run.folder, tmp_path / "run")
    (run / "report.html").unlink()
    assert main(["report", str(run)]) == 0
    assert "</html>" in (run / "report.html").read_text()
    assert main(["report", str(run / "views")]) == 1
    assert "is not a folder that tfbig wrote" in capsys.readouterr().err
