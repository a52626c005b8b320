"""A look inside a training step: activations, gradients and updates of each layer."""
