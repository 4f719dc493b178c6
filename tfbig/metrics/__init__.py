"""Metrics counted from labels (Dice, quadratic weighted kappa, confusion matrix), and ROC curves."""

from tfbig.metrics.counts import ConfusionMatrix, Dice, QuadraticWeightedKappa
from tfbig.metrics.roc import auc, macro_auc

__all__ = ["ConfusionMatrix", "Dice", "QuadraticWeightedKappa", "auc", "macro_auc"]
