"""Augmentations as TensorFlow graphs, one a file; ``labkit.data.augment`` puts them together."""
