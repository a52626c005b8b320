"""CIFAR-10 as it is published: download it, and read its archives and folders."""
