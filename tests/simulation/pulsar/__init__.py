"""Pulsar in the simulated world."""
