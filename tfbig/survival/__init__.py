"""Survival analysis: losses, gradients over whole risk sets, concordance, survival curves. Higher risk is worse."""

from tfbig.survival.concordance import concordance_index, concordance_interval
from tfbig.survival.cox import cox_loss
from tfbig.survival.discrete_time import (
    TimeBins,
    discrete_time_loss,
    discrete_time_risk,
    survival_function,
)
from tfbig.survival.kaplan_meier import LogRank, SurvivalCurve, kaplan_meier, log_rank_test
from tfbig.survival.risk_set_gradient import risk_set_gradient
from tfbig.survival.time_dependent_auc import time_dependent_auc

__all__ = [
    "LogRank",
    "SurvivalCurve",
    "TimeBins",
    "concordance_index",
    "concordance_interval",
    "cox_loss",
    "discrete_time_loss",
    "discrete_time_risk",
    "kaplan_meier",
    "log_rank_test",
    "risk_set_gradient",
    "survival_function",
    "time_dependent_auc",
]
