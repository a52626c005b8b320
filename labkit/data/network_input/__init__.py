"""What the network takes of an image: which part, and how its pixels are standardized.

``settings`` decides, without TensorFlow; ``tensors`` computes. Training, evaluation, export and everything
that asks a network about an image go through ``tensors.as_input``; ``labkit.data.numpy_batch`` has its twin.
"""
