"""Lesson 03: momentum and decay on a quadratic, update ratios, and the loss surface."""
