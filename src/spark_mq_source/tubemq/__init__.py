"""Apache InLong TubeMQ: the binary protocol, from bytes to batches."""
