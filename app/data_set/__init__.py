"""Parts of the pages about a run's data set."""
