"""Cohorts with times and events for tests of survival analysis."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st


def cohort(seed, n=40, tied=True):
    """Risks, times (many of them equal, or none) and events, where a higher risk is earlier."""
    rng = np.random.default_rng(seed)
    risks = rng.normal(size=n)
    times = rng.exponential(np.exp(-risks)) * 10
    events = rng.random(n) < 0.6
    events[0] = True
    return risks, np.ceil(times) if tied else times, events


@st.composite
def cohorts(draw, max_size=12, whole_risks=False):
    """Risks (whole: with ties), times with ties, and events, at least one of them 1."""
    risk = st.integers(-2, 2) if whole_risks else st.floats(-5, 5)
    rows = draw(
        st.lists(
            st.tuples(risk, st.integers(0, 6), st.booleans()), min_size=1, max_size=max_size
        ).filter(lambda rows: any(event for *_, event in rows))
    )
    risks, times, events = (np.array(column) for column in zip(*rows, strict=True))
    return risks.astype(np.float64), times, events
