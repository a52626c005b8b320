"""Callbacks: code of users, and the train loop's own extras, called at fixed points of a training."""
