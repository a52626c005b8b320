"""The parts of the page Predictions."""
