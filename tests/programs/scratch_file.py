"""Fill a scratch file, print "ready", then end: at once, by an error, or when standard input ends.

Usage: scratch_file.py FOLDER {exit,error,interrupt,kill}
"""

import signal
import sys

import numpy as np

from tfbig.stores import file_pool

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have ignored it
folder, end = sys.argv[1:]
array = file_pool.pool(folder).array((2**18,), np.float32)
array[:] = 1
print("ready", flush=True)
if end == "error":
    raise RuntimeError("in the middle")
if end != "exit":
    sys.stdin.read()
