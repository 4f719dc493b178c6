"""Bags of instances: arrays, HDF5 files, tiles of slides, augmentation."""
