"""Export a run as a file that works without labkit.

`api.export` writes the file; `predict.py` shows how to read each format.
"""
