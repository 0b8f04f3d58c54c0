"""Writing to NSQ, with the guarantee that was asked for."""
