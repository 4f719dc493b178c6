"""The command line: `tfbig` and `train.py`."""
