"""Reading NSQ: batches, streams, and their limits."""
