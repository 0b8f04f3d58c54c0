"""Real brokers for tests, demo and benchmarks: downloaded once, started on free ports, ended with their owner."""
