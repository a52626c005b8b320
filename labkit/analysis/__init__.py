"""What can be read out of a run that was trained, and out of a model."""
