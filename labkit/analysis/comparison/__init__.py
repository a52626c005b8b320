"""``labkit compare``: several models, several seeds, one budget, a process for each training."""
