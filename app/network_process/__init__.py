"""The process that holds a network for the dashboard. Only it imports TensorFlow; ``app.ask`` starts it."""
