"""Backbones, one file each in the same style, and their layers; `registry.build_model` builds a model."""
