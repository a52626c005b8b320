"""What people bring to a training: code of their own, and the consent to run what a record names."""
