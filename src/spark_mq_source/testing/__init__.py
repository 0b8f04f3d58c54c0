"""Brokers for tests, to be embedded in a process."""
