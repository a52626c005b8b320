"""What ``import labkit`` gives: training by the names of the flags, and finished runs as arrays."""
