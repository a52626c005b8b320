"""One training step again: its batch, and what the network made of it."""
