"""The parts of the Compare page: which runs, their results, which of two is better, and where they differ."""
