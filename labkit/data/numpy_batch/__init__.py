"""The training batch of one step without TensorFlow, whose import alone takes five seconds.

``labkit.data.pipeline`` makes the batches of a training as a TensorFlow graph. This package makes the same
batch with NumPy, for readers who want to look at one. The hashes' constants and keys are here alone, and
``tests/data/test_numpy_batch.py`` compares the two, bit by bit, for every setting of the distortion.
"""
