"""What lesson 14 needs: processes that are killed, a training that survives it, and servers of gradients."""
