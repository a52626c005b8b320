"""Changes of training images beyond crop, flip and cutout (``labkit.data.augment``).

Every draw is a hash of (seed, epoch, example index), or of (seed, step); ``labkit.data.numpy_batch`` has the
same changes with NumPy.
"""
