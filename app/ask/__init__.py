"""A network in a process of its own, which answers questions about images.

``client`` asks, and ``process`` starts it; both need only NumPy. ``python -m app.network_process`` is that
process: it imports TensorFlow and holds the weights of one checkpoint.
"""
