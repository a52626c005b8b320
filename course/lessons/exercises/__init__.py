"""The tests of the exercises: one module for each lesson. ``verdict.tests`` gives each its number."""
