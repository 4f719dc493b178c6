"""Readers of slides, one module for each format, and the pyramid of levels that they give."""
