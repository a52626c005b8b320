"""People's own pictures: find them in folders or a CSV file, check them, and prepare them for training.

Nothing here imports TensorFlow: the work is done by processes that have to start quickly.
"""
