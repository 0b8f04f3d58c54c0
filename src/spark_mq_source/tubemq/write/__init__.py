"""Writing to TubeMQ, with the requested guarantee."""
