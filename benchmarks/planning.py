"""Time the search for the plan of a training step on an accelerator; nothing is computed, and none is needed.

    python benchmarks/planning.py [--network ResNet50 --side 32768 --device 19GB --host 27GB --disk 1TB]

The defaults are a card of 24 GB in a machine of 32 GB. Prints one JSON line: the processor seconds of the search, and
what a step of the plan is predicted to take.
"""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
sys.path[0] = str(Path(__file__).resolve().parent.parent)

from benchmarks import harness, report


@dataclass(frozen=True)
class Arguments:
    network: Annotated[str, "of keras.applications"] = "ResNet50"
    side: Annotated[int, "rows and columns of the image"] = 32768
    device: str = "19GB"
    host: str = "27GB"
    disk: str = "1TB"


def measure(arguments: Arguments) -> str:
    """Plan a step, and return the line."""
    import tfbig
    from benchmarks.networks import application
    from tfbig.engine import machine_rates
    from tfbig.plan.plan import Rates

    # Of half of the peak of an RTX 3090, as in docs/plan_table.py.
    rates = Rates(operations=17.8e12, passes=250e9, copies=16e9)
    machine_rates.of = lambda *_: rates
    budget = tfbig.Budget(arguments.device, arguments.host, arguments.disk)
    model = tfbig.stream(application(arguments.network), budget, devices="CPU:0")
    model.compile("adam", "mse")
    began = time.process_time()
    plan = model.plan((1, arguments.side, arguments.side, 3))
    seconds = time.process_time() - began
    return report.line(
        f"planning of {arguments.network}",
        [arguments.side, arguments.side, 3],
        processor_seconds=round(seconds, 1),
        predicted_seconds=round(plan.seconds, 1),
        device_bytes=plan.projected.device,
        host_bytes=plan.projected.host,
        disk_bytes=plan.projected.disk,
    )


if __name__ == "__main__":
    print(measure(harness.read(Arguments)))
