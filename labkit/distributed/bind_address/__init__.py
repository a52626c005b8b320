"""Make TensorFlow's servers listen on one address. TensorFlow has no such option and listens on all."""

from labkit.distributed.bind_address.redirect import listen_on

__all__ = ["listen_on"]
