"""One module for each command of `tfbig`."""
