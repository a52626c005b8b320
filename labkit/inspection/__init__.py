"""A look inside one training step."""
