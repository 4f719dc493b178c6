"""The engine, which runs a plan forward and backward as a TensorFlow function."""
