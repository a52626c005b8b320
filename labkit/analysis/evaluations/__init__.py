"""What is made of a split's predictions: orders and filters, calibration, two of them side by side.

Needs only NumPy, and scikit-learn for precision–recall curves.
"""
