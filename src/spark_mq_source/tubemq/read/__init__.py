"""Reading TubeMQ: batches, streams, and what bounds them."""
