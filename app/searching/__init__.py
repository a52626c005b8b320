"""The Search page: what ``labkit search`` has found so far, and what goes on there."""
