"""Multiple instance learning end to end: an encoder of instances and an aggregator of bags, trained as one model.

`MIL` is the model, exact at the memory of a few instances; `bag_model` builds its plain twin. `read_bags` and `dataset`
prepare bags for training; `generate` makes bags of digits and of pictures.
"""

from tfbig.choices import NORMS
from tfbig.mil import generate
from tfbig.mil.bag_dataset import BagSet, dataset, foreground, read_bags, sample_size
from tfbig.mil.model import MIL, bag_model
from tfbig.models.abmilx import ABMILX
from tfbig.models.clam import CLAM, InstanceLoss
from tfbig.models.dsmil import DSMIL
from tfbig.models.dtfd import DTFDMIL
from tfbig.models.pooling import ABMIL, MaxPooling, MeanPooling
from tfbig.models.self_attention import SelfAttentionMIL, TransformerMIL
from tfbig.models.transmil import TransMIL

__all__ = [
    "ABMIL",
    "ABMILX",
    "CLAM",
    "DSMIL",
    "DTFDMIL",
    "MIL",
    "NORMS",
    "BagSet",
    "InstanceLoss",
    "MaxPooling",
    "MeanPooling",
    "SelfAttentionMIL",
    "TransMIL",
    "TransformerMIL",
    "bag_model",
    "dataset",
    "foreground",
    "generate",
    "read_bags",
    "sample_size",
]
