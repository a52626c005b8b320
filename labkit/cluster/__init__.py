"""Launchers of clusters: on this machine, under Slurm and on Kubernetes."""
