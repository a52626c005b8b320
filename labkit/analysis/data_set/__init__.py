"""What a network is trained on: content of a data set, augmentation, duplicates, wrong labels, a map.

Nothing here imports TensorFlow.
"""
