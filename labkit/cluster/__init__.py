"""Clusters: their description, one on this machine, and the schedulers that people have."""
