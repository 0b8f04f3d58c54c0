"""NSQ in the simulated world."""
