"""The tests of the exercises: one module for each lesson, with a tuple ``EXERCISES``."""
