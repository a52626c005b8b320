"""The version of labkit. It has a module of its own, so that no other has to import the public face."""

__all__ = ["VERSION"]

VERSION = "0.1.0"
