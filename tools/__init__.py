"""Development tools: what `make` calls."""
