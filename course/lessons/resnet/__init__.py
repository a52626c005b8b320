"""Lesson 02: networks with and without shortcuts, and what they do to a signal."""
