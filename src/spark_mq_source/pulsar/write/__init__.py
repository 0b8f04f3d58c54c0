"""Writing to Pulsar, with the requested guarantee."""
