"""Satellite scenes: their grid on Earth, bands and nodata; their labels; and results as cloud-optimised GeoTIFF."""
