"""TensorBoard: the event files that it reads, and the server that shows them."""
