"""The network: transports, the thread that drives a connection, deadlines and retries. Knows no protocol."""
