"""Commands that make recorded steps again: to look at one, to check a run, or to go on in another way."""
