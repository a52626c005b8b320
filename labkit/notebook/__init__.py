"""What ``notebooks/train.ipynb`` stands on: its parameters, its devices and data, its last word."""
