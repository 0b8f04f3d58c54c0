"""Apache Pulsar: the binary protocol, from bytes to batches."""
