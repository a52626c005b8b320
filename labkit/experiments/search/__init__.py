"""``labkit search``: many trainings with other settings, of which the best is kept, under one budget."""
