"""Metrics from counts (Dice, confusion matrix, quadratic weighted kappa), and areas under the ROC curve."""

from tfbig.metrics.class_dice import ClassDice
from tfbig.metrics.counts import ConfusionMatrix, Dice, QuadraticWeightedKappa
from tfbig.metrics.roc import auc, auc_interval, macro_auc

__all__ = [
    "ClassDice",
    "ConfusionMatrix",
    "Dice",
    "QuadraticWeightedKappa",
    "auc",
    "auc_interval",
    "macro_auc",
]
