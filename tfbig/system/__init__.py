"""The machine and the process: devices, memory limits, signals, progress, TensorFlow's errors."""
