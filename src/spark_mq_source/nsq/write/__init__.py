"""Writing to NSQ, at least once."""
