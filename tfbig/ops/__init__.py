"""TensorFlow operations that know nothing of networks: kernels, moments, random numbers, attention, gradients."""
