"""Reading NSQ: batches, streams, and what bounds them."""
