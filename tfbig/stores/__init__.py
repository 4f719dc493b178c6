"""Stores of images between sweeps: pooled host memory, a scratch file, the device."""
