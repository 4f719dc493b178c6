"""Training that can be stopped and gone on with: steps, checkpoints, workers."""
