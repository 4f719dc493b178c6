"""Train one run to its end, and then the same run until it kills itself in the middle of an epoch.

Usage: train_until_killed.py WHOLE KILLED CHECKPOINTS FLAGS...

The second run writes CHECKPOINTS checkpoints, one after each batch and each epoch, trains two more batches that no
checkpoint contains, and is killed.
"""

import os
import signal
import sys

import train
from tfbig.training import Checkpoints
from tfbig.training.rounds import Rounds


def kill_after(checkpoints):
    """Kill this process at the third read of a batch after a number of checkpoints."""
    written, reads = [], []
    write, read = Checkpoints.write, Rounds.read

    def counted_write(self, *state):
        written.append(write(self, *state) if len(written) < checkpoints else None)
        return written[-1]

    def counted_read(self, step, most=None):
        if len(written) >= checkpoints:
            reads.append(step)
        if len(reads) == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return read(self, step, most)

    Checkpoints.write, Rounds.read = counted_write, counted_read


if __name__ == "__main__":
    whole, killed, checkpoints, *flags = sys.argv[1:]
    code = train.main([*flags, "--out", whole])
    if code:
        sys.exit(code)
    kill_after(int(checkpoints))
    train.main([*flags, "--checkpoint-minutes", "1e-9", "--out", killed])
