"""Times and events of survival data, checked before they are used.

A member of a cohort is followed from time 0. It has an event (death, relapse) at its time, or is censored there:
nothing is known of it afterwards. Times are in any unit, the same for all; an event is 1, and 0 stands for censoring.
"""

from __future__ import annotations

from typing import Any

import numpy as np


def check_observations(
    name: str, times: Any, events: Any, need_event: bool = True, what: str = "times"
) -> None:
    """Check times and events as far as their values are known.

    Tensors of a graph have no values while it is traced: only their static shapes are checked.

    Args:
        name: Function or argument that error messages begin with.
        times: Times `[n]`, in any unit.
        events: Events `[n]`, each 0 or 1.
        need_event: Refuse data without any event.
        what: What the times are called in messages.

    Raises:
        ValueError: Shapes differ or are not `[n]`; a time is negative, missing or infinite; an event is neither 0
            nor 1; or all members are censored.
    """
    shapes = shape_of(times), shape_of(events)
    if any(len(shape) != 1 for shape in shapes) or not _may_be_equal(*shapes):
        raise ValueError(
            f"{name}: {what} have shape {shapes[0]} and events {shapes[1]}, expected equal shapes [n]. "
            f"Give one of the {what} and one event for each member."
        )
    known_times, known_events = known_values(times), known_values(events)
    if known_times is not None:
        _check_times(name, known_times)
    if known_events is not None:
        _check_events(name, known_events, need_event)


def observed(
    name: str, times: Any, events: Any, need_event: bool = True
) -> tuple[np.ndarray, np.ndarray]:
    """Check times and events, and return them as arrays.

    Args:
        name: Function that error messages begin with.
        times: Times `[n]`, in any unit.
        events: Events `[n]`, each 0 or 1.
        need_event: Refuse data without any event.

    Returns:
        Times, float64 `[n]`, and events, bool `[n]`.

    Raises:
        ValueError: As in `check_observations`.
    """
    check_observations(name, times, events, need_event)
    return np.asarray(times, np.float64), np.asarray(events).astype(bool)


def risks_of(name: str, risks: Any, num_members: int) -> np.ndarray:
    """Check risks, and return them as an array.

    Args:
        name: Function that error messages begin with.
        risks: Risks `[n]` or `[n, 1]`, infinite ones included.
        num_members: The number n.

    Returns:
        Risks, float64 `[n]`.

    Raises:
        ValueError: The shape is another one, or a risk is NaN.
    """
    values = np.asarray(risks, np.float64)
    if values.shape not in ((num_members,), (num_members, 1)):
        raise ValueError(
            f"{name}: risks have shape {values.shape}, expected [{num_members}] or [{num_members}, 1], one for each "
            "time."
        )
    num_nan = int(np.isnan(values).sum())
    if num_nan:
        raise ValueError(f"{name}: {num_nan} of {values.size} risks are NaN. Check the model.")
    return values.reshape(-1)


def known_values(data: Any) -> np.ndarray | None:
    """The values of an array, a list or an eager tensor; None for a tensor of a graph."""
    try:
        return np.asarray(data)
    except NotImplementedError:  # TensorFlow raises it
        return None


def shape_of(data: Any) -> tuple[int | None, ...]:
    """The static shape of an array, a list or a tensor."""
    shape = data.shape if hasattr(data, "shape") else np.shape(data)
    return tuple(shape)


def _may_be_equal(first: tuple[int | None, ...], second: tuple[int | None, ...]) -> bool:
    return all(a == b or a is None or b is None for a, b in zip(first, second, strict=True))


def _check_times(name: str, times: np.ndarray) -> None:
    if not np.issubdtype(times.dtype, np.number):
        raise ValueError(
            f"{name}: times are of type {times.dtype}, expected numbers. Give durations, not dates."
        )
    wrong = ~np.isfinite(times) | (times < 0)
    if wrong.any():
        first = int(np.argmax(wrong))
        raise ValueError(
            f"{name}: {int(wrong.sum())} of {times.size} times are missing, infinite or negative (member {first} has "
            f"{times[first]}), expected finite times from 0. Correct the table or drop these members."
        )


def _check_events(name: str, events: np.ndarray, need_event: bool) -> None:
    wrong = ~np.isin(events, (0, 1))
    if wrong.any():
        first = int(np.argmax(wrong))
        raise ValueError(
            f"{name}: {int(wrong.sum())} of {events.size} events are neither 0 nor 1 (member {first} has "
            f"{events[first]}), expected 1 for an event and 0 for censoring. Correct the table."
        )
    if need_event and not events.any():
        raise ValueError(
            f"{name}: all {events.size} members are censored, expected at least one event (1). Follow the members "
            "longer, or give a set of members in which some have the event."
        )
