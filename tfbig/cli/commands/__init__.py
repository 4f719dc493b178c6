"""Commands of `tfbig`, one module each."""
