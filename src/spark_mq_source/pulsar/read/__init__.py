"""Reading Pulsar: batches, streams, and what bounds them."""
