"""A run as a file that needs no labkit: `api.export` writes it, `predict.py` shows how each kind is read."""
