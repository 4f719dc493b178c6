"""Training that ends anywhere and goes on as if nothing had happened: the loop, and its checkpoints."""

from tfbig.training.checkpoint_files import Checkpoints
from tfbig.training.loop import Loop
from tfbig.training.rounds import Epochs

__all__ = ["Checkpoints", "Epochs", "Loop"]
