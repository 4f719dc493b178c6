"""Warm start of PatchGD on single digits."""

from argparse import Namespace

import keras
import numpy as np
import pytest
from cli_runs import run_patchgd

from tfbig.cli.tasks import images, warm_start


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["patchgd", "device", "offload"])
def test_warm_start(mode, tmp_path, capsys, monkeypatch):
    """The saved trunk is the one trained on digits; a resumed run does not train it again."""
    monkeypatch.setattr(warm_start, "DIGITS", 320)
    trunks, learn = [], warm_start.learn

    def learn_and_note(trunk, *rest):
        learn(trunk, *rest)
        trunks.append(trunk.get_weights())

    monkeypatch.setattr(warm_start, "learn", learn_and_note)
    flags = ("--mode", mode, "--epochs", "1", "--lr", "1e-12")
    flags += ("--num-images", "10", "10", "10", "--batch-size", "10", "--warm-start")
    assert run_patchgd(tmp_path / "out", *flags, "3") == 0
    output = capsys.readouterr().out
    assert "warm start: 320 single digits of 64 x 64, 3 epochs" in output
    lines = [line for line in output.partition("warm start")[2].splitlines() if "- loss" in line]
    losses = [float(line.split("loss: ")[1].split()[0]) for line in lines]
    assert losses[2] < losses[0]
    trunk = images.trunk_of(
        keras.models.load_model(tmp_path / "out" / "model.keras", compile=False),
        Namespace(mode=mode, encoder="small", inner_patch=None),
    )
    for weight, expected in zip(trunk.get_weights(), trunks[0], strict=True):
        np.testing.assert_allclose(weight, expected, atol=1e-6)
    assert run_patchgd(tmp_path / "out", *flags, "3", "--resume") == 0
    assert "- loss" not in capsys.readouterr().out  # nothing is trained again
    for weight, expected in zip(trunks[1], trunks[0], strict=True):
        np.testing.assert_array_equal(weight, expected)
