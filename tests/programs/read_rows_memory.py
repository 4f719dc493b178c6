"""Print by how many MiB the resident memory grows while a `.npy` file is read by rows.

Usage: read_rows_memory.py FILE. For each way to open the file, a line: kind, memory of mapped files, other memory.
"""

import sys
import types

package = sys.modules["tfbig"] = types.ModuleType("tfbig")
package.__path__ = ["tfbig"]  # the subpackage only: it needs neither TensorFlow nor Keras

import numpy as np

from tfbig import sources

assert not {"tensorflow", "keras"} & set(sys.modules)


def resident() -> list[int]:
    """Return the resident memory of mapped files and other memory in MiB."""
    with open("/proc/self/status") as file:
        fields = dict(line.split(":", 1) for line in file)
    return [int(fields[name].split()[0]) // 1024 for name in ("RssFile", "RssAnon")]


for kind in ("path", "map"):
    path = sys.argv[1]
    source = sources.open(np.load(path, mmap_mode="r") if kind == "map" else path)
    source.read(0, 500)
    before = resident()
    total = sum(int(source.read(row, row + 500)[0, 0, 0]) for row in range(0, 20_000, 500))
    print(kind, *(new - old for old, new in zip(before, resident(), strict=True)))
