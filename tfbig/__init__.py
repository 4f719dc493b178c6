"""Convolutional networks on images that do not fit in the memory of an accelerator, exact to rounding.

There are two concepts: `stream` runs a Keras model strip by strip, `Budget` limits the bytes that it may use.
"""

import importlib
import sys
from typing import TYPE_CHECKING, Any

import tfbig_command

__version__ = "0.1.0"

__all__ = [
    "Budget",
    "BudgetError",
    "NonFiniteError",
    "PatchGD",
    "Plan",
    "Slide",
    "Source",
    "SourceError",
    "SourceWarning",
    "Stopped",
    "StreamedModel",
    "TfbigError",
    "UnifiedMemory",
    "UnifiedMemoryError",
    "UnsupportedLayerError",
    "WorkerError",
    "backend",
    "layers",
    "losses",
    "masked",
    "metrics",
    "mil",
    "open",
    "open_slide",
    "optimizers",
    "patchgd",
    "rule",
    "sources",
    "stream",
    "survival",
    "unified_memory",
]

# Keras finds the classes of a saved model only if they were imported, so `import tfbig` imports all names (ADR 59).
if TYPE_CHECKING or not tfbig_command.is_light:
    from tfbig.system import backend  # isort: skip  (first: refuses a Keras that tfbig cannot run on)
    from tfbig.system import cpu_allocator  # isort: skip  # noqa: F401  (before TensorFlow creates a tensor)
    from tfbig import layers, losses, metrics, mil, optimizers, patchgd, sources, survival
    from tfbig.errors import (
        BudgetError,
        NonFiniteError,
        SourceError,
        SourceWarning,
        Stopped,
        TfbigError,
        UnifiedMemoryError,
        UnsupportedLayerError,
        WorkerError,
    )
    from tfbig.network.rules import rule
    from tfbig.patchgd import PatchGD
    from tfbig.plan.plan import Plan
    from tfbig.sources import Slide, Source, open, open_slide
    from tfbig.streaming.model import StreamedModel, stream
    from tfbig.system.budget import Budget
    from tfbig.system.unified_memory import UnifiedMemory, unified_memory
    from tfbig.tissue import masked
else:

    def __getattr__(name: str) -> Any:
        """Import all names when the first is used."""
        if name not in __all__:
            raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
        del globals()["__getattr__"]  # the imports above must not ask for names by this function
        importlib.reload(sys.modules[__name__])
        return globals()[name]
