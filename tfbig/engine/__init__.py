"""The engine that runs a plan, forward and backward, as a TensorFlow function."""
