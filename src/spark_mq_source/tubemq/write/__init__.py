"""Writing to TubeMQ, with the guarantee that was asked for."""
