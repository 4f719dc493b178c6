"""Multiple instance learning end to end: an encoder of instances and an aggregator of bags, trained as one model.

`MIL` is the model, exact at the memory of a few instances; `bag_model` builds its plain twin. `read_bags` and `dataset`
prepare bags for training; `generate` makes bags of digits and of pictures.
"""

from tfbig.mil import generate
from tfbig.mil.bag_dataset import BagSet, dataset, foreground, read_bags, sample_size
from tfbig.mil.model import MIL, NORMS, bag_model
from tfbig.models.dtfd import DTFDMIL
from tfbig.models.pooling import ABMIL, MaxPooling, MeanPooling
from tfbig.models.self_attention import SelfAttentionMIL
from tfbig.models.transmil import TransMIL

__all__ = [
    "ABMIL",
    "DTFDMIL",
    "MIL",
    "NORMS",
    "BagSet",
    "MaxPooling",
    "MeanPooling",
    "SelfAttentionMIL",
    "TransMIL",
    "bag_model",
    "dataset",
    "foreground",
    "generate",
    "read_bags",
    "sample_size",
]
