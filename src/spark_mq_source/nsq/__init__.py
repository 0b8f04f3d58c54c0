"""NSQ's V2 protocol, its HTTP interfaces, and what reads and writes over them."""
