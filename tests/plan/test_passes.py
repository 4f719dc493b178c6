"""Passes of a step: their order, replays before the sweeps that read them, and what is frozen."""

from __future__ import annotations

from dataclasses import replace

from graphs import chain, deep_graph, frozen, mse, read

from tfbig.network.graph import Graph, values_with_gradient
from tfbig.plan.passes import Kind, Pass, backward_passes, forward_passes, waiting_images
from tfbig.plan.sweeps import Layout, schedule


def described(passes: list[Pass]) -> list[str]:
    return [f"{kind} {sweep.index}" for kind, sweep in passes]


def layout_of(graph: Graph) -> Layout:
    return Layout(tuple(schedule(graph)))


def learned_by(graph: Graph) -> frozenset[int]:
    return values_with_gradient(graph, graph.trained)


def test_backward_passes_are_those_of_the_forward_pass_reversed() -> None:
    graph = read(chain())
    layout = layout_of(graph)
    numbers = range(len(layout.sweeps))
    assert len(numbers) > 1
    assert described(forward_passes(layout)) == [f"forward {n}" for n in numbers]
    passes = backward_passes(layout, learned_by(graph))
    assert described(passes) == [f"backward {n}" for n in reversed(numbers)]


def test_a_fused_last_sweep_runs_once() -> None:
    graph = mse(chain())
    layout = layout_of(graph)
    last = len(layout.sweeps) - 1
    forward = forward_passes(layout, fused=True)
    backward = backward_passes(layout, learned_by(graph), fused=True)
    assert described(forward) == [f"forward {n}" for n in range(last)]
    assert described(backward) == [
        f"both {last}",
        *(f"backward {n}" for n in reversed(range(last))),
    ]


def test_a_fused_last_sweep_runs_although_nothing_is_learned() -> None:
    first, *others = backward_passes(layout_of(mse(chain())), frozenset(), fused=True)
    assert first.kind is Kind.BOTH
    assert {each.kind for each in others} == {Kind.FROZEN}


def test_sweeps_before_all_that_is_trained_have_no_strips() -> None:
    graph = read(frozen(chain(), "conv1", "bn1", "conv2"))
    kinds = [kind for kind, _ in backward_passes(layout_of(graph), learned_by(graph))]
    assert kinds[-1] is Kind.FROZEN
    assert kinds[0] is Kind.BACKWARD
    assert kinds == sorted(kinds)  # backward, then frozen


def test_a_replay_runs_before_the_first_pass_that_reads_its_images() -> None:
    """One whose images no pass reads does not run."""
    graph = deep_graph(3)
    layout = layout_of(graph)
    *_, middle, _ = layout.sweeps
    (value, *_) = middle.reads
    replay = replace(middle, index=90, writes=(value,), is_replay=True)
    unread = replace(replay, index=91, writes=(10**6,))
    replayed = replace(layout, replays=(replay, unread))
    found = described(backward_passes(replayed, learned_by(graph)))
    readers = [f"backward {s.index}" for s in reversed(layout.sweeps) if value in s.reads]
    assert found[found.index("replay 90") + 1] == readers[0]
    assert "replay 91" not in found
    assert len(found) == len(layout.sweeps) + 1


def test_images_that_wait_are_those_that_backward_passes_read() -> None:
    graph = read(frozen(chain(), "conv1", "bn1", "conv2"))
    first, *others = schedule(graph)
    waiting = waiting_images([first, *others], learned_by(graph))
    assert waiting == {v for sweep in others for v in sweep.reads}
    assert waiting.isdisjoint(first.reads)
