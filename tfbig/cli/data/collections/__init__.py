"""Collections of `tfbig dataset`, a file each: what a folder should hold, how it is read, and its recipes."""
