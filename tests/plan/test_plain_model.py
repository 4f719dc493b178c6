"""Plans of images that run in plain Keras."""

from __future__ import annotations

from typing import Any

import keras
import pytest
from graphs import PLENTY, chain, chain_graph, conv, frozen, image, make_planner, read, squares
from keras import layers

from tfbig.errors import BudgetError
from tfbig.network.graph import Graph
from tfbig.plan import plain_model
from tfbig.plan.limits import KERNEL_ELEMENTS, Limits
from tfbig.plan.plan import Plan
from tfbig.plan.planner import Planner
from tfbig.plan.prepared_graph import Options


def planner(plain: int, training: bool = True) -> Planner:
    return Planner(chain_graph(), Limits(PLENTY, plain=plain), Options(training=training))


def test_one_sweep_with_one_strip_and_no_stores() -> None:
    found = planner(PLENTY)
    plan = found.plan(1, squares(found.graph, 64))
    assert plan.layout.plain
    assert (len(plan.sweeps), plan.strips, plan.projected.host, plan.moved_bytes) == (
        *(1, 1, 0),
        plan.image_bytes[found.prepared.first_image],
    )
    streamed = make_planner(found.graph).plan(1, squares(found.graph, 64))
    assert plan.exact_operations == streamed.exact_operations
    assert plan.recompute_factor == 1
    assert found.plan(1, squares(found.graph, 64), plan.layout) == plan


def peak(graph: Graph, side: int, training: bool = True, **options: Any) -> int:
    found = Planner(graph, Limits(PLENTY), Options(training=training, **options))
    return plain_model.peak_bytes(found._problem(1, squares(graph, side)))


@pytest.mark.parametrize("training", [False, True])
def test_limit(training: bool) -> None:
    """Sizes that need more are streamed; the bytes grow with the pixels."""
    least, most = (peak(chain_graph(), side, training) for side in (64, 128))
    assert most == 4 * least
    found = planner(least, training)
    layout = found.plan(1, squares(found.graph, 64)).layout
    assert layout.plain
    assert not found.plan(1, squares(found.graph, 65)).layout.plain
    with pytest.raises(BudgetError, match=r"the plain model needs more than .* without strips"):
        found.plan(1, squares(found.graph, 65), layout)


def test_training_needs_every_output_and_inference_a_few() -> None:
    training, inference = (peak(chain_graph(), 64, t) for t in (True, False))
    assert inference < training / 2


def test_frozen_layers_need_no_more_than_a_prediction() -> None:
    """Without a gradient, an output waits only for the layer that reads it; with one, for the backward pass."""
    names = [layer.name for layer in chain().layers[1:]]
    graphs = [read(frozen(chain(), *names[:count])) for count in (0, 3, 6)]
    trained, half, none = (peak(graph, 64) for graph in graphs)
    assert none < half < trained
    assert none == peak(graphs[0], 64, training=False)


def test_tensors_inside_activations_wait_too() -> None:
    """The gradient of GELU reads four tensors besides input and output; that of ReLU none."""
    start = image()
    plain, gelu = (
        peak(read(keras.Model(start, layers.Activation(name)(conv(8, "conv")(start)))), 64)
        for name in ("relu", "gelu")
    )
    assert gelu - plain == 4 * 64 * 64 * 8 * 4


def test_matrices_of_gradients() -> None:
    """A convolution of 3 x 3 with 4 inputs, whose gradients fill two matrices of 36 columns without oneDNN."""
    with_matrices, without = (peak(chain_graph(), 64, im2col=t) for t in (True, False))
    assert with_matrices - without == 2 * 64 * 64 * 9 * 4 * 4


def elements(rows: int, columns: int, **options: Any) -> tuple[Planner, dict[int, Any]]:
    """A planner with plenty of memory, and the size of an image; the widest image has 16 channels."""
    found = Planner(chain_graph(), Limits(PLENTY, plain=PLENTY), Options(**options))
    return found, dict.fromkeys(squares(found.graph, 1), (rows, columns))


@pytest.mark.parametrize("training", [False, True])
def test_no_tensor_has_more_elements_than_kernels_support(training: bool) -> None:
    """16 channels of 2**27 pixels are one element too many."""
    found, most = elements(2**13, 2**14 - 1, training=training)
    _, more = elements(2**13, 2**14)
    assert KERNEL_ELEMENTS + 1 == 16 * 2**27
    layout = found.plan(1, most).layout
    assert layout.plain
    plan = found.plan(1, more)
    assert not plan.layout.plain and plan.strips > 1
    assert not found.plan(2, most).layout.plain
    with pytest.raises(BudgetError, match=rf"more than {KERNEL_ELEMENTS} elements"):
        found.plan(1, more, layout)


def test_no_matrix_has_more_elements_than_kernels_support() -> None:
    """Two matrices of 36 columns have more elements than any image."""
    found, sizes = elements(2**12, 2**13, im2col=True)
    assert 2 * 36 * 2**25 > KERNEL_ELEMENTS > 16 * 2**25
    assert not found.plan(1, sizes).layout.plain
    found, sizes = elements(2**12, 2**13)
    assert found.plan(1, sizes).layout.plain


def test_all_bytes_are_within_the_host() -> None:
    """The traces and the model count where strips are in host memory too."""

    def plan(host: int | None, shared: bool = True) -> Plan:
        limits = Limits(PLENTY, host, plain=PLENTY, shared=shared)
        graph = chain_graph()
        return Planner(graph, limits, Options(model_bytes=1000)).plan(1, squares(graph, 64))

    total = plan(None).total_bytes
    assert plan(total).layout.plain
    assert plan(total - 1, shared=False).layout.plain
    with pytest.raises(BudgetError, match=r"a step needs at least"):
        plan(total - 1)  # of so small an image, strips need more


def test_compiled_convolutions() -> None:
    """Keras has XLA compile convolutions in groups."""
    fixed = []
    for groups in (1, 2):
        start = image(4)
        graph = read(keras.Model(start, layers.Conv2D(4, 3, groups=groups)(start)))
        found = Planner(graph, Limits(PLENTY, plain=PLENTY), Options())
        fixed.append(found.plan(1, squares(graph, 64)).projected.fixed)
    kernels = (
        (1 + 3) * (9 * 4 * 4 - 9 * 2 * 4) * 4
    )  # a gradient, and three more tensors of the largest
    assert fixed[1] - fixed[0] == plain_model.COMPILED[0] - kernels


def test_nothing_is_planned_but_the_plain_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """The search for cut points takes longer than the first step of a small image."""
    found = planner(PLENTY)
    monkeypatch.setattr(type(found.prepared), "cuts", property(lambda self: 1 / 0))
    assert found.plan(2, squares(found.graph, 64)).layout.plain
