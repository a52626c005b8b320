"""Measurements of labkit, one question a script; see README.md beside this file."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # before TensorFlow is imported
