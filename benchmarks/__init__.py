"""Benchmarks: one question a script, answered as a ratio within one run. See README.md."""
