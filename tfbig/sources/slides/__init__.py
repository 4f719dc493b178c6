"""Readers of slides, one module per format, and the pyramid of levels they share."""
