"""Pulsar in the simulated world: a model of a cluster, what is done with it, and what must come of that."""
