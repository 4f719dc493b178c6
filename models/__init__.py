"""Networks of the papers, as plain Keras models, and what `train.py` needs around them."""
