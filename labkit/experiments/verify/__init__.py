"""``labkit verify``: whether a run is what it says, by its hashes and by making its steps again."""
