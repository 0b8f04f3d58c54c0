"""NSQ's V2 protocol, its HTTP interfaces, and the readers and writers that use them."""
