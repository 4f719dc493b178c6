"""Rests of split models: the budget of the front is the part that whole tensors do not need."""

from __future__ import annotations

from typing import Any

import pytest
from graphs import PLENTY, chain_graph, make_planner, squares

from tfbig.errors import BudgetError
from tfbig.geometry.windows import Size
from tfbig.plan.planner import Planner


class Whole:
    """A rest of 100 bytes per pixel, such as `tfbig.network.front_and_rest.Split`."""

    layers = "'c5' .. 'fc' (12 layers)"

    def whole_bytes(self, batch: int, size: Size) -> int:
        return 100 * batch * size[0] * size[1]


WHOLE_BYTES = 2 * 100 * 2 * 64 * 64
"""Bytes of the rest for two images of 64 x 64, with gradients."""


def planners(device: int, host: int | None = None, **options: Any) -> tuple[Planner, Planner]:
    """Planners of a split model, and of its front with the remaining budget."""
    graph = chain_graph()
    front_host = host - WHOLE_BYTES if host is not None else None
    split = make_planner(graph, device, host, split=Whole(), **options)
    return split, make_planner(graph, device - WHOLE_BYTES, front_host, **options)


def test_device_budget() -> None:
    split, front = planners(WHOLE_BYTES + 400_000)
    sizes = squares(chain_graph(), 64)
    plan, alone = split.plan(2, sizes), front.plan(2, sizes)
    assert plan.costs == alone.costs
    assert plan.projected.device == alone.projected.device + WHOLE_BYTES
    assert plan.allowed.device == WHOLE_BYTES + 400_000
    assert plan.rest == (Whole.layers, WHOLE_BYTES)
    assert str(plan).endswith("1.6 MiB of the device bytes are whole tensors of " + Whole.layers)


def test_host_budget() -> None:
    """If strips are in host memory, the rest uses the host budget too."""
    split, front = planners(PLENTY, 10 * WHOLE_BYTES + 200 * 2**20, shared=True, firm=False)
    sizes = squares(chain_graph(), 64)
    plan, alone = split.plan(2, sizes), front.plan(2, sizes)
    assert plan.total_bytes == alone.total_bytes + WHOLE_BYTES
    assert not plan.allowed.firm


def test_prediction_has_no_gradients() -> None:
    split, _ = planners(PLENTY, training=False)
    assert split.plan(2, squares(chain_graph(), 64)).rest.whole_bytes == WHOLE_BYTES // 2


@pytest.mark.parametrize("gpu", [False, True])
@pytest.mark.parametrize("device", [1000, WHOLE_BYTES, WHOLE_BYTES + 1])
def test_small_device_is_refused_with_one_that_suffices(device: int, gpu: bool) -> None:
    split, _ = planners(device, gpu=gpu)
    message = (
        r"'model' on 2 x 64 x 64: the whole tensors of 'c5' .* take 1\.6 MiB of the device, and the smallest tile of "
        r"the other layers .*, but .* are allowed\. Raise `device` to 1\.\d MiB, or use"
    )
    with pytest.raises(BudgetError, match=message) as refused:
        split.plan(2, squares(chain_graph(), 64))
    need = refused.value.need_bytes
    enough, _ = planners(need, gpu=gpu)
    assert enough.plan(2, squares(chain_graph(), 64)).projected.device <= need
    with pytest.raises(BudgetError):
        planners(need - 1, gpu=gpu)[0].plan(2, squares(chain_graph(), 64))


def test_plans_of_other_sizes_leave_the_limits() -> None:
    """The chunk that a trace folds at a time is computed from the limits, whatever size was planned last."""
    split, _ = planners(WHOLE_BYTES + 400_000)
    limits = split.limits
    split.plan(2, squares(chain_graph(), 64))
    split.plan(1, squares(chain_graph(), 32))
    assert split.limits is limits
    assert split.plan(2, squares(chain_graph(), 64)).allowed is limits
