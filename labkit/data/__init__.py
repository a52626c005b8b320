"""Data sets: reading the source, storing it as records, and batching the records for training.

Nothing is imported here, because importing ``labkit.data.manifest``, ``prepare`` or ``resolve`` must not
import TensorFlow. ``labkit.data.pipeline``, ``augment`` and ``records`` do import it.
"""
