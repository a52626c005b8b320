"""Keep TensorFlow's servers on one address: they have no setting for it and listen on every one."""
