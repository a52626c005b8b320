"""The table of runs: its columns, the order of its rows, and what can be done with the selected ones."""
