"""Multiple instance learning end to end: an encoder of instances and an aggregator of bags, trained as one model.

`MIL` is the model, exact at the memory of a few instances; `bag_model` is its plain twin. `read_bags` and `dataset`
give what both are trained on; `generate` makes bags of digits and of pictures.
"""

from tfbig.mil import generate
from tfbig.mil.data import BagSet, dataset, foreground, read_bags, sample_size
from tfbig.mil.model import MIL, NORMS, bag_model

__all__ = [
    "MIL",
    "NORMS",
    "BagSet",
    "bag_model",
    "dataset",
    "foreground",
    "generate",
    "read_bags",
    "sample_size",
]
