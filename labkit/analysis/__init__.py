"""Analyses of models, training steps and finished runs."""
