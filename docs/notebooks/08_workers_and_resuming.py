# %% [markdown]
# # Several workers, and a run that is killed
#
# You train on a cluster. Jobs end when their time is up, machines fail, and you want to use several machines. None
# of this may change the result. Here we kill a run in the middle, resume it, and compare it with a run that was
# not interrupted. Then we train with two processes, and compare the result with that of one process.
#
# The bags are synthetic: their tiles show discs, crosses and bars, and a bag with a ring is positive.

# %%
import tfbig  # first, so that TensorFlow starts without its log lines

import json
import os
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import keras
import matplotlib.pyplot as plt
import numpy as np

print("tfbig", tfbig.__version__)
os.chdir(tempfile.mkdtemp())  # what is written goes here
FLAGS = (
    "--task mil --data bags --epochs 6 --lr 0.003 --schedule constant --keep last"
    " --checkpoint-minutes 0.005 --deterministic"
)


def history(folder):
    """Return the loss of each epoch of a run."""
    lines = Path(folder, "history.csv").read_text().splitlines()
    column = lines[0].split(",").index("loss")
    return [float(line.split(",")[column]) for line in lines[1:]]


def weights(folder):
    """Return the weights of the model of a run."""
    return keras.saving.load_model(f"{folder}/model.keras").get_weights()


# %%
# !python -m tfbig.recipes.write_drawn_bags bags --bags 24 8 8 --instances 12

# %% [markdown]
# ## A run that nobody disturbs

# %%
# !tfbig train {FLAGS} --quiet --out whole

# %% [markdown]
# ## The same run, killed
#
# We kill it as a failing machine would: at once, with no chance to save anything (`kill -9`), after its first
# checkpoints.

# %%
run = subprocess.Popen(
    ["tfbig", "train", *FLAGS.split(), "--quiet", "--out", "killed"], stdout=subprocess.DEVNULL
)
while run.poll() is None:
    time.sleep(0.05)
    if Path("killed/history.csv").exists() and len(history("killed")) >= 2:
        run.send_signal(signal.SIGKILL)
print("ended with code", run.wait(), "- signal 9")
print("left behind:", sorted(path.name for path in Path("killed/checkpoints").iterdir()))
before = history("killed")
print(f"{len(before)} of 6 epochs")

assert not Path("killed/model.keras").exists()

# %% [markdown]
# ## Resumed
#
# We use the same command, with `--resume`. Put this flag into every job script: a run that has not started yet
# starts, a run that was interrupted continues, and a run that has ended stays as it is.

# %%
# !tfbig train {FLAGS} --quiet --out killed --resume

# %%
plt.figure(figsize=(6, 3.2))
plt.plot(history("whole"), "o-", markersize=9, label="nobody disturbed it")
plt.plot(history("killed"), "x--", label="killed and resumed")
plt.axvline(len(before) - 0.5, color="C3", linestyle=":", label="killed")
plt.xlabel("epoch")
plt.ylabel("training loss")
plt.legend()
plt.show()

assert history("whole") == history("killed")
assert all(np.array_equal(a, b) for a, b in zip(weights("whole"), weights("killed"), strict=True))

# %% [markdown]
# The two runs are not just nearly the same: every number and every bit of every weight is equal.
#
# ## Two workers
#
# Each process gets the same command. It reads from environment variables which worker it is. SLURM sets these
# variables for you; here we set `TF_CONFIG` ourselves. Each worker takes every other bag, and gradients are added
# up before the optimizer steps.

# %%
import socket

ports = []
for _ in range(2):
    with socket.socket() as free:
        free.bind(("localhost", 0))
        ports.append(free.getsockname()[1])
cluster = {"worker": [f"localhost:{port}" for port in ports]}
TWO = [*FLAGS.split(), "--quiet", "--epochs", "3", "--precision", "float64"]
workers = []
for index in range(2):
    who = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": index}})
    with open(f"worker-{index}.log", "w") as log:
        workers.append(
            subprocess.Popen(
                ["tfbig", "train", *TWO, "--strategy", "multiworker", "--out", "two"],
                env=os.environ | {"TF_CONFIG": who},
                stdout=log,
                stderr=log,
            )
        )
print("codes of both workers:", [worker.wait() for worker in workers])

# %% [markdown]
# One process that averages the gradients of two bags before each step must arrive at the same weights:

# %%
command = " ".join(TWO)
# !tfbig train {command} --accumulate 2 --out one

# %%
largest = max(np.abs(a - b).max() for a, b in zip(weights("two"), weights("one"), strict=True))
print(f"two workers and one differ by at most {largest:.0e}")

assert largest < 1e-10

# %% [markdown]
# ## What next
#
# - With several GPUs in one machine, use `--strategy mirrored`. With SLURM, use `srun --ntasks-per-node 1 tfbig train
#   ... --strategy multiworker --resume`.
# - The [guide](../guides/workers.md) describes this for Kubernetes and Ray too, and
#   [reliability](../reliability.md) describes what else can fail.
