"""TubeMQ in the simulated world."""
