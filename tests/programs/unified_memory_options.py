"""Configure unified memory before TensorFlow creates its devices, and print the options it then uses as JSON."""

import json

from tensorflow.python.eager import context

from tfbig.system import unified_memory

if __name__ == "__main__":
    assert not context.context()._initialized  # importing tfbig creates no devices
    unified_memory._configure(2.5)
    options = context.context().config.gpu_options
    context.context().ensure_initialized()
    print(json.dumps([options.per_process_gpu_memory_fraction, options.allow_growth]))
