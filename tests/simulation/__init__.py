"""The guarantees, explored: the whole program under test in a simulated world, in orderings drawn from seeds."""
