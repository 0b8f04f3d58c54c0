"""The network: transports, the thread of a connection, deadlines and retries. Independent of the protocols."""
