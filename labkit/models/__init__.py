"""Backbones: one file each, one style; `registry.build_model` makes them."""
