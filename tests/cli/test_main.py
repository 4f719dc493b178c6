"""The console command `tfbig`: help, version and exit codes."""

import pytest

from tfbig.cli.main import main


def test_no_command_and_version(capsys):
    with pytest.raises(SystemExit) as ended:
        main([])
    assert ended.value.code == 2
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("tfbig 0.1")
