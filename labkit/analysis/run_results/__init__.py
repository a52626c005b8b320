"""What several runs have reached, with which settings, and which of two is better. Needs no TensorFlow."""
