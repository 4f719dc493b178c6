"""Survival analysis: losses, gradients over whole risk sets, concordance, survival curves. Higher risk is worse."""

from tfbig.survival.cox import cox_loss

__all__ = ["cox_loss"]
