"""Data sets: where they come from, how they are stored, how they are fed to a training step.

Nothing is imported here: ``labkit.data.manifest``, ``prepare`` and ``resolve`` answer without
TensorFlow, ``labkit.data.pipeline``, ``augment`` and ``records`` need it.
"""
