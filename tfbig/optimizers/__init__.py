"""Optimisers used by the papers that tfbig reproduces and missing in Keras.

`CoupledAdam` is for ABMIL, DTFD-MIL and Big-Layers' PANDA models, `DemonAdamW` for Big-Layers'
CAMELYON models, `LookaheadRAdam` for TransMIL. All clip gradients first, as Keras does: `clipnorm`,
`clipvalue` and `global_clipnorm` limit the gradient of the loss without `l2 * w`.
"""

from tfbig.optimizers.adam import CoupledAdam, DemonAdamW
from tfbig.optimizers.radam import LookaheadRAdam, RAdam

__all__ = ["CoupledAdam", "DemonAdamW", "LookaheadRAdam", "RAdam"]
