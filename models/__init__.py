"""Networks of the papers as plain Keras models; imported as `tfbig.models`."""
