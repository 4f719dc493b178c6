"""Keras models read as a graph of local operations and reductions, and the losses they are trained with."""
