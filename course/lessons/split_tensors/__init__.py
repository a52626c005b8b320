"""Lesson 13: one layer over several workers."""
