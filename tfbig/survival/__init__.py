"""Survival analysis: losses, gradients over whole risk sets, concordance, survival curves. Higher risk is worse."""

from tfbig.survival.cox import cox_loss
from tfbig.survival.discrete_time import (
    TimeBins,
    discrete_time_loss,
    discrete_time_risk,
    survival_function,
)
from tfbig.survival.risk_set_gradient import risk_set_gradient

__all__ = [
    "TimeBins",
    "cox_loss",
    "discrete_time_loss",
    "discrete_time_risk",
    "risk_set_gradient",
    "survival_function",
]
