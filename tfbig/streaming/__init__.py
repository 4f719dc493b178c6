"""Streamed models: a `keras.Model` whose calls and training steps run through the engine."""
