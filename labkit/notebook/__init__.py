"""The functions that ``notebooks/train.ipynb`` calls."""
