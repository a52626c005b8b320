"""Many trainings with one table, or a training made again: comparisons, replicas, replay, fork, profile."""
