"""Long training in one process: memory, open files and scratch files do not grow over 500 steps."""

import json
import subprocess
import sys

import numpy as np
import pytest
from samples import ENVIRONMENT, PROGRAMS

STEPS, FIRST = 500, 50
SIZES = 24
"""Number of image sizes. TensorFlow caches what oneDNN compiled for a shape, for up to 1024 shapes per thread
(`kCapacity` of its `MklPrimitiveFactory`): 500 steps on 500 sizes use 0.3 MB more with each, up to a third more than 50
steps, and none with TF_ENABLE_ONEDNN_OPTS=0 (`docs/reliability.md`)."""


@pytest.mark.memory
def test_memory_and_files_do_not_grow(tmp_path):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    command = [sys.executable, str(PROGRAMS / "soak_training.py"), str(STEPS), str(SIZES)]
    command += [str(scratch), str(tmp_path / "out")]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    rows = np.array(json.loads(done.stdout.splitlines()[-1]))
    assert len(rows) == STEPS
    memory, files, scratch_files = rows[FIRST:].T
    before = rows[:FIRST, 0].max()
    print(f"{before / 1e6:.1f} MB in {FIRST} steps, then up to {memory.max() / 1e6:.1f}", files[-1])
    assert memory.max() <= 1.05 * before
    assert memory[-50:].mean() <= 1.05 * memory[:50].mean()
    assert np.ptp(files) == 0
    assert scratch_files.max() == scratch_files.min() > 0
