"""Start from other weights, and train only part of a network."""
