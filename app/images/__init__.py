"""Images: cards of predictions, the confusion matrix."""
