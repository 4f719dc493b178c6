"""Wait to be stopped by a signal; with the argument `deaf`, never check for one.

Usage: wait_for_signal.py [hears | deaf]. Prints "ready", and exits with code 7 when it is stopped.
"""

import sys
import time
from pathlib import Path
from types import ModuleType

# `tfbig.system.signals` needs no TensorFlow; importing the package would take seconds.
package = ModuleType("tfbig")
package.__path__ = [str(Path(__file__).resolve().parents[2] / "tfbig")]
sys.modules["tfbig"] = package

from tfbig.system import signals

if __name__ == "__main__":
    try:
        with signals.on_signals("ends soon"):
            print("ready", flush=True)
            while True:
                time.sleep(0.01)
                if sys.argv[1] != "deaf":
                    signals.check()
    except signals.Stopped as error:
        print(error, flush=True)
        sys.exit(7)
