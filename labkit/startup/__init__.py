"""What a process does first: it takes signals, and imports TensorFlow without its messages."""
