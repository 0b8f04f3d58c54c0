"""Writing to Pulsar, with the guarantee that was asked for."""
