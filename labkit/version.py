"""The version of labkit. It has a module of its own, so that no other has to import the public face."""

VERSION = "0.1.0"
