"""A network in a process of its own, which answers questions about images.

``client`` starts the process and asks; it needs only NumPy. ``python -m app.network_process`` is the process:
it imports TensorFlow and holds the weights of one checkpoint. ``wire`` has the messages between the two.
"""
