"""Exploration of the guarantees: the whole program under test in a simulated world, whose events a seed orders."""
