"""Benchmarks of this package beside its limits and other clients; README.md in this folder describes them."""
