"""Lock a folder until standard input is closed, as a training process does.

Usage: python hold_lock.py FOLDER
"""

import fcntl
import os
import sys

fcntl.flock(os.open(sys.argv[1], os.O_RDONLY), fcntl.LOCK_EX)
print("locked", flush=True)
sys.stdin.read()
