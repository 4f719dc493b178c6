"""TensorFlow operations that are independent of networks: kernels, moments, random numbers, attention, gradients."""
