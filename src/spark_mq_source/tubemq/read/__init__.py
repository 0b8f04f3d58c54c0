"""Reading TubeMQ: batches, streams, and their limits."""
