"""Devices, memory limits, signals, progress and TensorFlow errors of the current process."""
