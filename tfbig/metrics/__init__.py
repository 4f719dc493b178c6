"""Metrics from counts (Dice, confusion matrix, kappa), areas under the ROC curve, and matches of instances."""

from tfbig.metrics.class_dice import ClassDice
from tfbig.metrics.counts import ConfusionMatrix, Dice, QuadraticWeightedKappa
from tfbig.metrics.instances import Matches, match_instances
from tfbig.metrics.roc import auc, auc_interval, macro_auc

__all__ = [
    "ClassDice",
    "ConfusionMatrix",
    "Dice",
    "Matches",
    "QuadraticWeightedKappa",
    "auc",
    "auc_interval",
    "macro_auc",
    "match_instances",
]
