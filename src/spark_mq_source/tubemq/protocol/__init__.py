"""TubeMQ's protocol without sockets, threads and clocks: bytes, commands, and the state of a connection."""
