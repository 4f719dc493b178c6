"""Bags of instances: arrays, files, tiles of slides, and their augmentation."""
