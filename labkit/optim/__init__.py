"""What moves the weights: optimizers and learning-rate schedules."""
