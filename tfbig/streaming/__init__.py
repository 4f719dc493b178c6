"""Streamed models: Keras models whose calls and training steps run through the engine."""
