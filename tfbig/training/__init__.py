"""Training loop that can be stopped at any moment and resumed without a difference, and its checkpoints."""

from tfbig.training.checkpoint_files import Checkpoints
from tfbig.training.loop import Loop
from tfbig.training.rounds import Epochs

__all__ = ["Checkpoints", "Epochs", "Loop"]
