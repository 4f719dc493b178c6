"""Volumes `[D, H, W, C]`: readers, one module per format, and views of them."""
