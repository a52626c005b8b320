"""Readers of models and finished runs."""
