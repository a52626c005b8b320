"""Trainings that labkit doesn't run, recorded as run directories, so that they have its pages."""
