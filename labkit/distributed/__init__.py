"""Devices, strategies and clusters: who computes what, who is alive, and how processes talk to each other."""
