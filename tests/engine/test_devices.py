"""Steps on logical CPU devices, as accelerators: where operations run, memory, and exactness with several devices."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from samples import ENVIRONMENT, PROGRAMS

BUDGET = 125_000


def run_parts(*parts: str) -> dict[str, Any]:
    """Run parts of `programs/devices.py` and return their results."""
    done = subprocess.run(
        [sys.executable, str(PROGRAMS / "devices.py"), *parts],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


@pytest.fixture(scope="module")
def measured() -> dict[str, Any]:
    return run_parts("placement", "sent")


@pytest.fixture(scope="module")
def measured_slowly() -> dict[str, Any]:
    return run_parts(
        *(
            "one device",
            "second device",
            "three devices",
            "several",
            "shared",
            "kept",
            "background",
        ),
        *("kept integers", "kept strips"),
    )


@pytest.mark.slow
def test_accelerator_computes(measured: dict[str, Any]) -> None:
    """Every convolution runs on the accelerator, none on the host."""
    placement = measured["placement"]
    kinds = {"Conv2D", "Conv2DBackpropFilter", "Conv2DBackpropInput"}
    assert kinds <= set(placement["device types"])
    assert not kinds & set(placement["host types"])
    assert "PyFunc" not in placement["device types"]  # stores stay on the host


@pytest.mark.slow
def test_tensors_on_accelerator_are_strips(measured: dict[str, Any]) -> None:
    placement = measured["placement"]
    assert placement["strips"] > 8
    assert placement["largest image"] == 4 * 64 * 64 * 8 > BUDGET  # stored on the host
    assert placement["largest on device"] <= BUDGET


@pytest.mark.slow
def test_strips_stay_inside_device_budget(measured: dict[str, Any]) -> None:
    placement = measured["placement"]
    assert placement["live on device"] <= placement["planned"] <= BUDGET
    assert placement["live on device"] >= 0.2 * BUDGET  # the measurement includes the strips


@pytest.mark.slow
def test_numbers_stay_on_the_accelerator(measured: dict[str, Any]) -> None:
    """The accelerator sends no floating-point tensor but the loss to the host."""
    assert len(measured["sent"]) <= 1


@pytest.mark.slow
def test_sharing_devices_are_bitwise_equal(measured_slowly: dict[str, Any]) -> None:
    """Integers only: otherwise the kernels of each device sum in a different order."""
    assert measured_slowly["three devices"] == measured_slowly["one device"]


@pytest.mark.slow
def test_second_device_is_bitwise_equal(measured_slowly: dict[str, Any]) -> None:
    assert measured_slowly["second device"] == measured_slowly["one device"]


@pytest.mark.slow
def test_every_device_computes(measured_slowly: dict[str, Any]) -> None:
    """Forward convolutions, and gradients of weights, run on both devices in equal numbers."""
    shared = measured_slowly["shared"]
    for kind in ("Conv2D", "Conv2DBackpropFilter"):
        counts = shared["runs"][kind]
        assert set(counts) == {"CPU:1", "CPU:2"}
        assert abs(counts["CPU:1"] - counts["CPU:2"]) <= shared["sweeps"]


@pytest.mark.slow
def test_images_kept_on_accelerator_do_not_pass_the_host(measured_slowly: dict[str, Any]) -> None:
    """No tensor on the host is larger than the input image."""
    kept = measured_slowly["kept"]
    assert kept["host bytes"] == 0
    assert kept["largest image"] == 4 * 64 * 64 * 3 < 4 * 64 * 64 * 8


@pytest.mark.slow
def test_strips_of_images_on_the_accelerator_are_bitwise_equal(
    measured_slowly: dict[str, Any],
) -> None:
    for plain, strips, single in measured_slowly["kept integers"]:
        assert strips == plain
        assert single == plain


@pytest.mark.slow
def test_images_on_the_accelerator_are_exact(measured_slowly: dict[str, Any]) -> None:
    """After two steps all weights and statistics equal those of the plain model, in one strip and in strips."""
    cases = measured_slowly["kept strips"]
    assert [case["single"] for case in cases] == [False, False, True]
    for case in cases:
        assert case["kept"] >= 5 and not case["host bytes"]
        assert case["single"] == (case["strips"] == 1)
        assert case["changed"]
        assert case["error"] <= 1e-10


@pytest.mark.slow
def test_several_devices_are_exact(measured_slowly: dict[str, Any]) -> None:
    """After two steps with normalisation, in float64, all weights and statistics equal those of the plain model."""
    assert measured_slowly["several"]["error of weights"] <= 1e-10
    assert measured_slowly["several"]["strips"] >= 3


@pytest.mark.slow
def test_prediction_to_file_has_rows_in_order(measured_slowly: dict[str, Any]) -> None:
    assert measured_slowly["several"]["error of prediction"] <= 1e-10


@pytest.mark.slow
def test_devices_share_what_is_not_background(measured_slowly: dict[str, Any]) -> None:
    background = measured_slowly["background"]
    assert background["active"] < 0.9
    assert background["error of weights"] < 1e-10
