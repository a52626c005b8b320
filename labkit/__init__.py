"""labkit: a lab for understanding, running and trusting distributed training.

Importing the package imports neither TensorFlow nor any of its own modules.
"""

__version__ = "0.1.0"
