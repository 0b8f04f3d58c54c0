"""Reading Pulsar: batches, streams, and their limits."""
