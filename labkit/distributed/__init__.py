"""Devices, ``tf.distribute`` strategies, and communication between the processes of a cluster."""
